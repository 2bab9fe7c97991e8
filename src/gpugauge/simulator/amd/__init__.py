"""The test double of amdgpu: its files in a folder, as they are at a second of the scenario."""
