# SPDX-License-Identifier: Apache-2.0
"""The wheel around an installed NUPA, which packaging/build has put into nupa/prefix."""
import os

from setuptools import Distribution, setup


class Binary(Distribution):
    """The wheel is for one platform."""

    def has_ext_modules(self):
        return True


def installed():
    """All files of the prefix, from the package's folder."""
    return [os.path.relpath(os.path.join(folder, name), "nupa")
            for folder, _, names in os.walk("nupa/prefix") for name in names]


setup(
    name="nupa",
    version=os.environ["NUPA_VERSION"],
    description="RDMA verbs in user space, without an adapter",
    long_description="Programs that use libibverbs and librdmacm run unchanged: `nupa run -- PROGRAM`, or `nupa.enable()` in Python.",
    license="Apache-2.0",
    python_requires=">=3.7",
    packages=["nupa"],
    package_data={"nupa": installed()},
    entry_points={"console_scripts": ["nupa = nupa:main"]},
    distclass=Binary,
    options={"bdist_wheel": {"py_limited_api": False}},
)
