"""`python -m pollux_slurm` is `pollux`."""

from pollux_slurm.cli import main

if __name__ == "__main__":
    main()
