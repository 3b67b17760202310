# SPDX-License-Identifier: Apache-2.0
"""The wheel of the PyTorch backend, for one Python and one torch (packaging/build)."""
import os
import re

from setuptools import Distribution, setup


class Binary(Distribution):
    def has_ext_modules(self):
        return True


def torch_release():
    """The release of the torch that the module was built for, which it names itself."""
    import sysconfig
    with open("nupa_torch/_C" + sysconfig.get_config_var("EXT_SUFFIX"), "rb") as module:
        return re.search(rb"libtorch_cpu\.so\.?([0-9.]*)", module.read())[1].decode()


version = os.environ["NUPA_VERSION"]
release = torch_release()
setup(
    name="nupa_torch",
    version=version,
    description="The backend nupa of torch.distributed",
    license="Apache-2.0",
    packages=["nupa_torch"],
    package_data={"nupa_torch": ["*.so"]},
    install_requires=["nupa==" + version, "torch" + ("==%s.*" % release if release else "")],
    distclass=Binary,
)
