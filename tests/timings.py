"""What differs between two runs of the same settings: how long they took, and what they took of the machine."""

TIMINGS = {
    "wall_seconds",
    "seconds_per_epoch",
    "median_seconds_per_epoch_per_task",
    "samples_per_second",
    "peak_memory_bytes",
}
