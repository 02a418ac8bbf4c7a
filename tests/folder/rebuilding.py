"""A run that is rebuilt from its journals."""

from gpu_acceptance.folder.rebuild import rebuild

ENDED = "2026-11-20T07:21:40+00:00"
WHY = "node-00 lost power"


def rebuilt(contents):
    return rebuild(contents, ended_at=ENDED, why=WHY)
