"""The receiver: a small isolated process that holds the connections of hooks. C modules only: others cost memory."""
