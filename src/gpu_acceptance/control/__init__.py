"""Typed messages and heartbeats between supervisors; who this process is by its launcher; the meeting before a launch."""
