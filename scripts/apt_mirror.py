# SPDX-License-Identifier: Apache-2.0
"""The mirror that apt uses, for scripts that fetch another release or a root folder."""
import subprocess
import sys


def apt_mirror():
    """Its address. Ends the script if apt names none."""
    sites = subprocess.run(["apt-get", "indextargets", "--format", "$(SITE)"], capture_output=True, text=True).stdout.split()
    sites = [site for site in dict.fromkeys(sites) if "security" not in site]
    if not sites:
        sys.exit(sys.argv[0] + ": apt names no mirror (run apt-get update)")
    return sites[0]
