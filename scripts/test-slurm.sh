#!/usr/bin/env bash
# Runs the job script for Slurm on a Slurm cluster of Debian 12, with the wheel in a user's environment.
#
# The system of the cluster is made in .cache/deploy when it is missing. The try has a copy of it in memory,
# and processes, mounts and a network of its own, which end with it. Ends with 77 and a reason where that
# cannot be.
. "$(dirname "$0")/lib.sh"
. scripts/deploy-lib.sh

needs_namespaces "The job script for Slurm"
wheel=$(a_wheel)
debian_system slurm slurmd,slurmctld,slurm-client,munge,python3-venv,iproute2,procps,mount
inside_system slurm "$wheel" scripts/slurm.py deploy/slurm/plasmon.sbatch -- '
    python3 -m venv /opt/venv
    /opt/venv/bin/pip install --quiet --no-index /try/*.whl
    python3 -u /try/slurm.py /opt/venv /try/plasmon.sbatch'
