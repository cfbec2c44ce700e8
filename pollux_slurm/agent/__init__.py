"""What runs inside a job without torch: launcher, profiler, run claims, reporter."""
