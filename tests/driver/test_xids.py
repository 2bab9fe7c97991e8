from gpugauge.driver.vendors.nvidia import XID_CLASSES, xid_labels


def test_labels_of_codes() -> None:
    assert xid_labels(79) == ("79", "node", "GPU has fallen off the bus")
    assert xid_labels(48) == ("48", "workflow", "Double bit ECC error")
    assert (xid_labels(126)[2], xid_labels(135)[2]) == ("CE10: unknown error", "CE19: unknown error")
    assert xid_labels(999) == ("999", "other", "")


def test_each_code_has_one_class_and_a_name() -> None:
    codes = [xid for codes in XID_CLASSES.values() for xid in codes]

    assert len(codes) == len(set(codes))
    assert all(name and '"' not in name for _, _, name in map(xid_labels, codes))
