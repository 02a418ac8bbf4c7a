"""The packages of the wheel: all of src/, and the suite and its limits, which lie at the top of a checkout, where people edit them.

Of the suite the wheel carries the files. Nobody imports them by these names.
"""

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

TOP = "gpu_acceptance.suite"
ELSEWHERE = {
    "gpu_acceptance.profiles": "thresholds",
    TOP: ".",
    f"{TOP}.acceptance": "acceptance",
    f"{TOP}.fixtures": "fixtures",
}


class BuildPy(build_py):
    """Takes conftest.py from the top of the checkout, and no other module that lies there."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        found = super().find_package_modules(package, package_dir)
        return [one for one in found if package != TOP or one[1] == "conftest"]


setup(packages=[*find_packages("src"), *ELSEWHERE], package_dir={"": "src", **ELSEWHERE}, cmdclass={"build_py": BuildPy})
