# SPDX-License-Identifier: Apache-2.0
"""The files of the repository, as git lists them, for the scripts and checks that read all of them."""
import subprocess


class NotListed(Exception):
    """git does not list the files. The text is one line that names the reason and the remedy."""


def listed_files(root, *patterns):
    """Returns the names of the files that are tracked, or new and not ignored, relative to `root`."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise NotListed("git is not installed: it lists the files of %s" % root) from error
    if done.returncode == 0:
        return [name for name in done.stdout.split("\0") if name]
    if "safe.directory" in done.stderr:
        raise NotListed("%s belongs to another user, so git does not list its files: run "
                        "git config --global --add safe.directory %s" % (root, root))
    raise NotListed("git does not list the files of %s: %s" % (root, done.stderr.strip().split("\n")[0]))
