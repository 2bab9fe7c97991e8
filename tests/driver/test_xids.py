from gpugauge.driver.xids import LASTING, LINKED, XID_CLASSES, xid_class, xid_labels, xid_name


def test_xid_class() -> None:
    classes = {31: "application", 43: "ignorable", 119: "reset", 74: "workflow", 79: "node", 154: "recovery"}
    classes |= {45: "follow_up", 142: "other", 999: "other"}

    assert {xid: xid_class(xid) for xid in classes} == classes


def test_no_code_is_in_two_classes() -> None:
    codes = [xid for codes in XID_CLASSES.values() for xid in codes]

    assert len(codes) == len(set(codes))


def test_every_code_with_a_class_has_a_name() -> None:
    names = {xid: xid_name(xid) for codes in XID_CLASSES.values() for xid in codes}

    assert [xid for xid, name in names.items() if not name or '"' in name] == []
    assert (names[48], names[79], names[126], names[135]) == (
        *("Double bit ECC error", "GPU has fallen off the bus", "CE10: unknown error", "CE19: unknown error"),
    )
    assert xid_labels(999) == ("999", "other", "")


def test_errors_of_programs_do_not_last() -> None:
    assert {xid_class(xid) for xid in LASTING - {63, 94}} == {"reset", "workflow", "node"}
    assert LINKED <= LASTING
