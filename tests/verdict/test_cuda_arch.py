from gpugauge.verdict.cuda_arch import arch_supported

# torch.cuda.get_arch_list() of published builds, from reports of their users.
CONDA_1_9_CUDA_10_2 = "sm_35 sm_37 sm_50 sm_60 sm_61 sm_70 sm_75"  # github.com/moi90/pytorch_compute_capabilities
CONDA_1_13_CUDA_11_7 = "sm_37 sm_50 sm_60 sm_61 sm_70 sm_75 sm_80 sm_86"  # the same table
WHEEL_2_0_CU118 = "sm_37 sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90"  # pytorch issue 95648
WHEEL_2_11_CU126 = "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90"  # pytorch issue 182250; so was 2.5 with CUDA 12.4
WHEEL_2_8_CU128 = "sm_70 sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120"  # pytorch pull request 158301
WHEEL_2_10_CU128 = "sm_70 sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"  # pytorch issue 182250
WHEEL_2_11_CU128 = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"  # pytorch issue 182250
ARM_2_9_CU128 = "sm_80 sm_90 sm_100 sm_120"  # OpenRAL/openral pull request 167
KAGGLE_2024 = "sm_60 sm_70 sm_75 compute_70 compute_75"  # Kaggle/docker-python pull request 1411
OWN_9_0A = "sm_90a"  # TORCH_CUDA_ARCH_LIST="9.0a", pytorch issue 125413
OWN_12_1A = "sm_121a"  # TORCH_CUDA_ARCH_LIST="12.1a", pytorch pull request 188191

V100, T4, A100, A10, L4, H100 = (7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0)
B200, B300, THOR, RTX_5090, GB10 = (10, 0), (10, 3), (11, 0), (12, 0), (12, 1)


def test_real_builds_on_real_devices() -> None:
    for build, runs, does_not in (
        (CONDA_1_9_CUDA_10_2, [V100, T4], [A100, A10, L4, H100, B200, RTX_5090]),
        (CONDA_1_13_CUDA_11_7, [V100, T4, A100, A10, L4], [H100, B200, RTX_5090]),
        (WHEEL_2_0_CU118, [V100, T4, A100, A10, L4, H100], [B200, THOR, RTX_5090, GB10]),
        (WHEEL_2_11_CU126, [V100, T4, A100, A10, L4, H100], [B200, B300, THOR, RTX_5090, GB10]),
        (WHEEL_2_8_CU128, [V100, T4, A100, A10, L4, H100, B200, B300, RTX_5090, GB10], [(6, 1), THOR]),
        (WHEEL_2_10_CU128, [V100, T4, A100, A10, L4, H100, B200, B300, RTX_5090, GB10], [(6, 1), THOR]),
        (WHEEL_2_11_CU128, [T4, A100, A10, L4, H100, B200, B300, RTX_5090, GB10], [V100, THOR]),
        # Reported: "no kernel image is available" on a Thor, while a GB10 works.
        (ARM_2_9_CU128, [A100, A10, L4, H100, B200, RTX_5090, GB10], [T4, THOR]),
        # The driver compiles PTX for 7.5 for all later versions.
        (KAGGLE_2024, [V100, T4, A10, L4, H100, B200, RTX_5090], [(5, 2)]),
        (OWN_9_0A, [H100], [A100, B200, (9, 1)]),
        (OWN_12_1A, [GB10], [RTX_5090, B200]),
        ("sm_86", [A10, L4], [A100, T4, H100]),
        ("sm_89", [L4], [A10, H100]),
        ("sm_100f", [B200, B300], [THOR, RTX_5090]),
        ("sm_100a", [B200], [B300]),
        ("compute_90a", [H100], [B200, RTX_5090]),
        ("compute_100f", [B200, B300], [RTX_5090]),
    ):
        named = {device: arch_supported(build.split(), device) for device in [*runs, *does_not]}
        assert named == dict.fromkeys(runs, True) | dict.fromkeys(does_not, False), build


def test_list_without_architectures_is_undecided() -> None:
    lists: list[list[str]] = [[], ["gfx90a", "gfx942", "gfx1100"], ["sm_", "compute_x", "sm_90b"]]

    assert [arch_supported(names, H100) for names in lists] == [None] * 3


def test_unknown_architecture_does_not_affect_the_others() -> None:
    assert arch_supported(["sm_next", "sm_90"], H100) is True
