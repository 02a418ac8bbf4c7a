"""Slurm reports every node of the job sound; each has the CPUs, memory and GPUs that it was given, and no more.

Also: a step comes back from each node.
"""

import os
import time

import pytest

from gpu_acceptance.inventory import cgroup, slurm, slurm_health, system

pytestmark = pytest.mark.no_group


def test_controller(of_job):
    """Each controller that slurm.conf names answers."""
    of_job(lambda: slurm_health.controller(slurm.controllers()))


def test_allocation(of_job, slurm_job, slurm_homes):
    """All nodes of the job are allocated and in no other state, and one torchrun of this run is on each of them."""
    of_job(lambda: slurm_health.allocation(slurm.nodes_of(slurm_job()), os.environ[slurm.JOB], slurm_homes))


def test_partition(of_job, told_of_job, slurm_job):
    """The partition is up. Its nodes on which no job starts are not tested, and the verdict counts them."""
    of_job(lambda: slurm_health.partition(slurm.partition_of(slurm_job())))
    told_of_job(lambda: slurm_health.partition_facts(slurm.nodes_of(slurm.partition_of(slurm_job()))))


def test_isolation(of_job):
    """Slurm is configured to keep a job to its CPUs, memory and GPUs, and to end all its processes."""
    of_job(lambda: slurm_health.isolation(slurm.config()))


def test_cpus(of_node, slurm_promise, bound_cpus):
    """The ranks of a node may run on as many CPUs as Slurm allocated to the job there, and on no more."""
    of_node(lambda: slurm_health.cpus(slurm_promise(), bound_cpus))


def test_memory(of_node, slurm_promise):
    """They may use as much memory as Slurm allocated."""
    of_node(lambda: slurm_health.memory(slurm_promise(), system.read_memory().total_bytes, cgroup.read_cgroup().memory_bytes))


def test_gpus(of_node, slurm_promise, num_gpus_seen):
    """They see as many GPUs as Slurm allocated, and no more."""
    of_node(lambda: slurm_health.gpus(slurm_promise(), num_gpus_seen))


def test_round_trip(of_job, slurm_job):
    """A step of the job starts on each of its nodes, and each returns the text that it was given."""
    of_job(lambda: slurm_health.round_trip(slurm.nodes_of(slurm_job())))


def test_time(of_job, slurm_job):
    """The job does not end before the planned end of this run."""
    of_job(lambda: slurm_health.time(slurm_job(), os.environ.get("SLURM_JOB_END_TIME"), time.time()))


def test_leftovers(of_node):
    """This user has no process that is older than the job and belongs to no step."""
    of_node(lambda: slurm_health.leftovers(slurm.read_leftovers()))
