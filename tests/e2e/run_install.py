#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `cmake --install` and the Debian package leave behind works by itself, and the package goes without a trace."""
import errno
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pairs import BUILD, ROOT, finish, outcome, private_runtime_dir, skip

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(ROOT, "scripts", "manual_parts"))
import environment  # noqa: E402
private_runtime_dir()
work = tempfile.mkdtemp(prefix="nupa-install-")
# Nothing of the build tree may help.
for name in ("LD_LIBRARY_PATH", "LD_PRELOAD", "CMAKE_PREFIX_PATH", "PKG_CONFIG_PATH"):
    os.environ.pop(name, None)


def command(arguments, seconds=120, **more):
    try:
        return subprocess.run(arguments, capture_output=True, text=True, timeout=seconds,
                              stdin=subprocess.DEVNULL, **more)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(arguments, -1000, "", "still running after %d s" % seconds)


def tell(name, done, *expected):
    text = done.stdout + done.stderr
    missing = [word for word in expected if word not in text]
    good = done.returncode == 0 and not missing
    outcome(good, name, "status %s, not said: %s; said: %s" % (done.returncode, missing,
                                                               text[-400:].replace("\n", " | ")))
    return good


def mapped_files(text):
    """Files of /proc/PID/maps."""
    return {fields[5] for fields in (line.split(None, 5) for line in text.splitlines()) if len(fields) == 6}


def ours(files):
    return sorted(f for f in files if re.search(r"lib(nupa|ibverbs)", f) and f.startswith("/") and "(deleted)" not in f)


def has_collectives():
    return os.path.exists(os.path.join(BUILD, "lib", "libnupa_ccl.so.0"))


def installed_program(name, prefix, before=()):
    """ibv_devinfo, and a program that says what it has mapped, by the installed `nupa`."""
    nupa = [*before, prefix + "/bin/nupa"]
    tell(name + "-devinfo", command([*nupa, "run", "--", "ibv_devinfo"]), "nupa0", "PORT_ACTIVE")
    done = command([*nupa, "run", "--", "python3", "-c", "import ctypes; ctypes.CDLL('libibverbs.so.1')\n"
                    "print(open('/proc/self/maps').read())"])
    files = ours(mapped_files(done.stdout))
    wrong = [f for f in files if not f.startswith(prefix + "/")]
    outcome(done.returncode == 0 and len(files) >= 2 and not wrong, name + "-uses-its-own-libraries",
            "status %s, %s %s" % (done.returncode, files, done.stderr[-200:]))
    tell(name + "-nupa-devices", command([*nupa, "devices"]), "nupa0")
    if has_collectives():
        # By the run path: nothing says where the library is.
        tell(name + "-nupa-ccl", command([*nupa, "ccl", "bench", "-n", "2", "--max-bytes", "1K", "--iterations", "1"]),
             "all_reduce", "1024", "  ok ")


def has_manual():
    """A build without python3 has no manual pages."""
    return os.path.isdir(os.path.join(BUILD, "share", "man"))


def installed_manual(prefix):
    """Manual pages, and the completion of bash."""
    if not has_manual():
        return skip("installed-manual", "the build has no manual pages (it needs python3)")
    pages = glob.glob(prefix + "/share/man/man[1-9]/nupa*")
    names = {os.path.basename(page) for page in pages}
    missing = {"nupa.1", "nupa-run.1", "nupa-net.1", "nupa.7", "nupa_ccl.3", "nupa_ccl_all_reduce.3"} - names
    outcome(not missing, "installed-pages", "missing: %s of %s" % (sorted(missing), sorted(names)))
    if shutil.which("groff") is None:
        skip("installed-pages-without-warnings", "needs groff")
    else:
        # With -s, references to other pages (.so) are read; they begin at man/.
        done = command(["groff", "-s", "-man", "-ww", "-z", *pages], cwd=prefix + "/share/man")
        outcome(done.returncode == 0 and not done.stderr, "installed-pages-without-warnings", done.stderr[-400:])
    # The page of the variables is made from the source; the program has the same table.
    done = command([prefix + "/bin/nupa", "--print-definitions"])
    with open(os.path.join(ROOT, "src", "base", "settings_table.h")) as table:
        source = environment.read_table(table.read())
    with open(os.path.join(ROOT, "docs", "reference", "environment.md")) as text:
        page = text.read()
    printed = json.loads(done.stdout or "{}").get("variables", [])
    outcome(printed == source, "installed-variables", "%s" % [one for one in printed if one not in source])
    outcome(environment.page(page, printed or source) == page, "installed-variables-are-those-of-the-page")
    script = 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _nupa; echo "${COMPREPLY[@]}"'
    completion = prefix + "/share/bash-completion/completions/nupa"
    for words, expected in ((["r"], "run"), (["run", "--transport", "ro"], "roce"), (["stat", "--w"], "--watch")):
        done = command(["bash", "--norc", "-c", script, completion, "nupa", *words])
        outcome(done.stdout == expected + "\n", "installed-completion-of-" + words[-1].strip("-"), done.stdout + done.stderr)
    outcome(os.path.exists(prefix + "/share/zsh/site-functions/_nupa"), "installed-completion-of-zsh")


def install():
    prefix = os.path.join(work, "prefix")
    if not tell("cmake-install", command(["cmake", "--install", BUILD, "--prefix", prefix])):
        return None
    strangers = []
    for folder, _, names in os.walk(prefix):
        for name in names:
            path = os.path.join(folder, name)
            if name.endswith((".cmake", ".pc")):
                with open(path) as text:
                    said = text.read()
                strangers += ["%s names %s" % (name, place) for place in (BUILD, ROOT, "/usr/local") if place in said]
            elif os.path.isfile(path) and open(path, "rb").read(4) == b"\x7fELF":
                dynamic = command(["readelf", "-d", path]).stdout
                if re.search(r"R(UN)?PATH.*(%s|%s)" % (re.escape(BUILD), re.escape(ROOT)), dynamic):
                    strangers.append(name + " has a run path into the build tree")
    outcome(not strangers, "installed-files-name-no-build-tree", "; ".join(strangers))
    if os.path.isdir(os.path.join(BUILD, "lib", "python")):
        module = glob.glob(prefix + "/lib/python/nupa_torch/*")
        outcome({name.rsplit(".", 1)[1] for name in module} == {"py", "so"}, "installed-torch-backend", module)
    installed_program("installed", prefix)
    installed_manual(prefix)
    return prefix


def runs(name, program, prefix):
    env = dict(os.environ, LD_LIBRARY_PATH=prefix + "/lib", LD_DEBUG="files")
    done = command([program], env=env)
    used = {line.rsplit("init: ", 1)[1] for line in done.stderr.splitlines() if "calling init: " in line}
    own = ours(used)
    outcome(done.returncode == 0 and "memory: written" in done.stdout and own and
            all(f.startswith(prefix + "/") for f in own), name,
            "status %s, %s, libraries %s" % (done.returncode, done.stdout[-200:], own))


def users_of(prefix):
    """A program of a user's own, by find_package and by pkg-config."""
    source = os.path.join(work, "cmake-user")
    os.mkdir(source)
    shutil.copy(os.path.join(HERE, "loopback.cc"), source)
    with open(os.path.join(source, "CMakeLists.txt"), "w") as text:
        text.write("cmake_minimum_required(VERSION 3.20)\nproject(user LANGUAGES CXX)\n"
                   "find_package(nupa 0.2 REQUIRED)\nadd_executable(loopback loopback.cc)\n"
                   "target_link_libraries(loopback PRIVATE nupa::nupa)\n")
    built = os.path.join(work, "cmake-built")
    configured = command(["cmake", "-S", source, "-B", built, "-DCMAKE_PREFIX_PATH=" + prefix])
    if has_collectives():
        ccl_user_of(prefix)
    if (tell("find_package-configures", configured) and
            tell("find_package-builds", command(["cmake", "--build", built]))):
        runs("find_package-runs", os.path.join(built, "loopback"), prefix)
    wrong = command(["cmake", "-S", source, "-B", os.path.join(work, "cmake-none"),
                     "-DCMAKE_PREFIX_PATH=" + work + "/no", "-DCMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH=OFF"])
    outcome(wrong.returncode != 0 or os.path.exists("/usr/lib/cmake/nupa"), "find_package-fails-elsewhere")

    env = dict(os.environ, PKG_CONFIG_PATH=prefix + "/lib/pkgconfig")
    flags = command(["pkg-config", "--cflags", "--libs", "nupa"], env=env)
    if not tell("pkg-config", flags, prefix):
        return
    program = os.path.join(work, "loopback-pkg-config")
    compiled = command(["g++", os.path.join(HERE, "loopback.cc"), "-o", program, *flags.stdout.split()])
    if tell("pkg-config-builds", compiled):
        runs("pkg-config-runs", program, prefix)
    examples_of(prefix, env)


def examples_of(prefix, env):
    """The installed examples, with the compiler's default standard and no flag of the user."""
    folder = os.path.join(prefix, "share/doc/nupa/examples")
    programs = [("hello_rdma.cc", ["nupa"], "nupa::nupa")]
    if has_collectives():
        programs.append(("linear_model.cc", ["nupa", "nupa_ccl"], "nupa::nupa nupa::ccl"))
    source = os.path.join(work, "examples-user")
    os.mkdir(source)
    with open(os.path.join(source, "CMakeLists.txt"), "w") as text:
        text.write("cmake_minimum_required(VERSION 3.20)\nproject(user LANGUAGES CXX)\nfind_package(nupa 0.2 REQUIRED)\n")
        for number, (name, _, libraries) in enumerate(programs):
            text.write("add_executable(p%d %s/%s)\ntarget_link_libraries(p%d PRIVATE %s)\n" % (number, folder, name, number, libraries))
    built = os.path.join(work, "examples-built")
    tell("examples-find_package-configures", command(["cmake", "-S", source, "-B", built, "-DCMAKE_PREFIX_PATH=" + prefix]))
    tell("examples-find_package-builds", command(["cmake", "--build", built]))
    for name, packages, _ in programs:
        flags = command(["pkg-config", "--cflags", "--libs", *packages], env=env).stdout.split()
        compiled = command(["g++", os.path.join(folder, name), "-o", os.path.join(work, name + ".program"), *flags])
        tell("examples-pkg-config-builds-" + name, compiled)
    if has_collectives():
        flags = command(["pkg-config", "--cflags", "--libs", "nupa_ccl"], env=env).stdout.split()
        compiled = command(["gcc", "-Werror", os.path.join(work, "ccl-user", "alone.c"), "-o", os.path.join(work, "alone-pkg-config"), *flags])
        tell("pkg-config-builds-c", compiled)


def ccl_user_of(prefix):
    """Programs in C and C++ that use collectives."""
    source = os.path.join(work, "ccl-user")
    os.mkdir(source)
    with open(os.path.join(source, "alone.c"), "w") as text:
        text.write("#include <nupa/ccl.h>\n#include <stdio.h>\nint main(void) {\n  nupa_ccl_comm* comm = 0;\n"
                   "  const int error = nupa_ccl_comm_init(&comm);\n"
                   "  printf(\"%d %s\\n\", error, nupa_ccl_error_text());\n  return 0;\n}\n")
    with open(os.path.join(source, "CMakeLists.txt"), "w") as text:
        text.write("cmake_minimum_required(VERSION 3.20)\nproject(user LANGUAGES C CXX)\n"
                   "find_package(nupa 0.2 REQUIRED)\nadd_executable(alone alone.c)\n"
                   "target_link_libraries(alone PRIVATE nupa::ccl)\n"
                   "add_executable(thrown thrown.cc)\n"
                   "target_link_libraries(thrown PRIVATE nupa::ccl)\n")
    with open(os.path.join(source, "thrown.cc"), "w") as text:
        text.write("#include <nupa/ccl.hpp>\n#include <cstdio>\nint main() try {\n"
                   "  nupa::collectives::Communicator world;\n  world.barrier();\n"
                   "} catch (const nupa::collectives::Error& error) {\n"
                   "  std::printf(\"%d %s\\n\", error.code().value(), error.what());\n}\n")
    built = os.path.join(work, "ccl-built")
    if (tell("find_package-ccl-configures", command(["cmake", "-S", source, "-B", built,
                                                     "-DCMAKE_PREFIX_PATH=" + prefix])) and
            tell("find_package-ccl-builds", command(["cmake", "--build", built]))):
        for program in ("alone", "thrown"):
            tell("find_package-ccl-%s-runs" % program, command([os.path.join(built, program)]), "%d " % errno.ENOENT,
                 "`nupa launch`")


def package():
    """The Debian package's file, after its content was checked."""
    folder = os.path.join(work, "package")
    for tool, by in (("file", "file"), ("dpkg-shlibdeps", "dpkg-dev")):
        if shutil.which(tool) is None:
            return skip("package", "cpack needs the program %s (package %s)" % (tool, by))
    done = command(["cpack", "-G", "DEB", "-B", folder, "--config", os.path.join(BUILD, "CPackConfig.cmake")], 240,
                   cwd=work)
    found = glob.glob(folder + "/*.deb")
    if not tell("cpack", done) or len(found) != 1:
        return None
    listing = command(["dpkg-deb", "-c", found[0]]).stdout.splitlines()
    paths = [line.split()[5][1:] for line in listing]
    wanted = ["/usr/bin/nupa", "/usr/include/nupa/device.h", "/usr/lib/libnupa.so.0", "/usr/lib/libnupa.so",
              "/usr/lib/nupa/libibverbs.so.1", "/usr/lib/nupa/librdmacm.so.1",
              "/usr/lib/nupa/libnupa_sockets.so", "/usr/lib/cmake/nupa/nupa-config.cmake", "/usr/lib/pkgconfig/nupa.pc",
              "/usr/share/doc/nupa/copyright", "/usr/share/doc/nupa/examples/hello_rdma.cc",
              "/usr/share/doc/nupa/docs/README.md"]
    if has_collectives():
        wanted += ["/usr/include/nupa/ccl.h", "/usr/lib/libnupa_ccl.so.0", "/usr/lib/libnupa_ccl.so",
                   "/usr/lib/pkgconfig/nupa_ccl.pc"]
    if has_manual():
        wanted += ["/usr/share/man/man1/nupa-run.1", "/usr/share/man/man7/nupa.7", "/usr/share/man/man3/nupa_ccl.3",
                   "/usr/share/bash-completion/completions/nupa", "/usr/share/zsh/vendor-completions/_nupa"]
    missing = [path for path in wanted if path not in paths]
    outside = [path for path in paths if not path.startswith("/usr/") and path != "/"]
    outcome(not missing and not outside, "package-content", "missing %s, outside /usr %s" % (missing, outside))
    # The system's own libraries have to stay what every other program finds.
    hidden = [path for path in paths if ("libibverbs" in path or "librdmacm" in path) and not path.startswith("/usr/lib/nupa/")]
    outcome(not hidden, "package-replaces-no-library", str(hidden))
    large = [path for path in paths if "/python" in path]
    outcome(not large and "torch" not in command(["dpkg-deb", "-f", found[0], "Depends"]).stdout, "package-needs-no-torch", str(large))
    modes = [line for line in listing if not line.split()[1].startswith("root/root") or
             (line[0] in "-d" and (line[8] == "w" or line[5] == "w" or "s" in line[:10]))]
    outcome(not modes, "package-owners-and-modes", "; ".join(modes))
    fields = dict(re.findall(r"^ (\w[\w-]*): (.*)$", command(["dpkg-deb", "-I", found[0]]).stdout, re.M))
    depends = [entry.split()[0] for entry in fields.get("Depends", "").split(", ")]
    linked = command(["readelf", "-d", os.path.join(BUILD, "bin", "nupa")]).stdout
    needed = [("libc6", "libc.so"), ("libstdc++6", "libstdc++"), ("libfmt9", "libfmt.so.9"),
              ("libgcc-s1", "libgcc_s")]
    absent = [name for name, soname in needed if soname in linked and name not in depends]
    outcome(fields.get("Package") == "nupa" and "@" in fields.get("Maintainer", "") and not absent and
            "libibverbs1" not in depends and "nupa" not in depends and len(fields.get("Description", "")) > 10 and
            fields.get("Version", "") in command([os.path.join(BUILD, "bin", "nupa"), "--version"]).stdout and
            fields.get("Section") == "net" and fields.get("Architecture"), "package-fields", str(fields))
    control = os.path.join(work, "control")
    command(["dpkg-deb", "-e", found[0], control])
    with open(control + "/shlibs") as text:
        shlibs = text.read()
    outcome("libnupa 0 nupa" in shlibs and "ibverbs" not in shlibs, "package-shlibs", shlibs)
    scripts = [name for name in os.listdir(control) if name in ("preinst", "postinst", "prerm", "postrm", "config")]
    outcome(not scripts and os.path.exists(control + "/triggers"), "package-without-scripts", str(scripts))
    return found[0]


# Runs inside a mount namespace of its own. Arguments: a folder to mount on, the package.
IN_OVERLAY = r"""
set -e
base="$1"; package="$2"
mount -t tmpfs tmpfs "$base"
mkdir "$base/upper" "$base/work" "$base/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$base/upper,workdir=$base/work" "$base/root" 2>"$base/why" || exit 77
mount --rbind /proc "$base/root/proc"
mount --rbind /dev "$base/root/dev"
mount -t tmpfs tmpfs "$base/root/tmp"
mkdir -p "$base/root/tmp/nupa" && chmod 700 "$base/root/tmp/nupa"
cp "$package" "$base/root/tmp/nupa.deb"
export NUPA_RUNTIME_DIR=/tmp/nupa DEBIAN_FRONTEND=noninteractive
ldconfig -r "$base/root"
chroot "$base/root" dpkg -i /tmp/nupa.deb
echo "== installed"
chroot "$base/root" sh -c 'dpkg --verify nupa; dpkg -L nupa'
chroot "$base/root" /usr/bin/nupa run -- ibv_devinfo
chroot "$base/root" /usr/bin/nupa run -- python3 -c "import ctypes; ctypes.CDLL('libibverbs.so.1')
print(open('/proc/self/maps').read())"
echo "== ldconfig"
chroot "$base/root" ldconfig -p | grep -E 'libnupa|libibverbs'
echo "== removing"
chroot "$base/root" dpkg -r nupa
echo "== difference"
# The upper layer holds what was written: files that are new, files that are not as before, and marks of removed ones.
cd "$base/upper"
find . -mindepth 1 ! -path './tmp*' ! -path './var/log/*' ! -path './var/cache/ldconfig/*' ! -path './var/cache/man/*' | while read -r path; do
  if [ -c "$path" ]; then
    [ ! -e "/$path" ] || echo "removed $path"
  elif [ ! -e "/$path" ] && [ ! -L "/$path" ]; then
    echo "left $path"
  elif [ -f "$path" ]; then
    case "$path" in
      ./var/lib/dpkg/status*|./var/lib/dpkg/lock*|./var/lib/dpkg/triggers/*|./etc/ld.so.cache) ;;
      *) cmp -s "$path" "/$path" || echo "changed $path" ;;
    esac
  fi
done
cmp -s "$base/upper/var/lib/dpkg/status" /var/lib/dpkg/status ||
  diff /var/lib/dpkg/status "$base/upper/var/lib/dpkg/status" || true
echo "== status"
chroot "$base/root" dpkg-query -W -f='${db:Status-Status}\n' nupa 2>&1 || true
chroot "$base/root" ldconfig -p | grep libnupa || true
echo "== end"
"""


def part(text, name):
    """What the script said after its line '== NAME'."""
    found = re.search(r"^== %s\n(.*?)(?=^== |\Z)" % name, text, re.S | re.M)
    return found.group(1) if found else ""


def really_install(deb):
    """The system's dpkg on a copy-on-write view of this system: nothing of this machine is touched."""
    if os.geteuid() != 0:
        return skip("package-installs", "needs root")
    base = os.path.join(work, "overlay")
    os.mkdir(base)
    done = command(["unshare", "--mount", "--propagation", "private", "sh", "-c", IN_OVERLAY, "sh", base, deb], 200)
    if done.returncode == 77:
        return skip("package-installs", "no overlay file system here")
    text = done.stdout
    good = tell("package-installs", done, "== end", "PORT_ACTIVE")
    if not good:
        return
    files = ours(mapped_files(text))
    outcome(any(f.endswith("/usr/lib/nupa/libibverbs.so.1") for f in files) and
            all("/usr/lib/nupa/" in f or "/usr/lib/libnupa" in f for f in files), "package-uses-its-own-libraries",
            str(files))
    cache = part(text, "ldconfig")
    outcome("libnupa.so.0" in cache and "/usr/lib/nupa/" not in cache, "package-library-is-known", cache)
    outcome(part(text, "difference") == "", "package-leaves-nothing", part(text, "difference"))
    outcome("no packages found" in part(text, "status") and "libnupa" not in part(text, "status"),
            "package-is-forgotten", part(text, "status"))


try:
    if not os.path.exists(os.path.join(BUILD, "CPackConfig.cmake")):
        outcome(False, "build-folder", "%s is not a build folder" % BUILD)
        finish()
    if not os.access(BUILD, os.W_OK):
        skip("install", "cmake --install writes to the build folder, which belongs to another user")
        finish()
    where = install()
    if where is not None:
        users_of(where)
    made = package()
    if made is not None:
        really_install(made)
finally:
    shutil.rmtree(work, ignore_errors=True)
finish()
