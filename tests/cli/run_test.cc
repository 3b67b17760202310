// SPDX-License-Identifier: Apache-2.0
// `nupa run`, `nupa doctor` and `nupa clean`: a program's environment, exit statuses, removed files.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "json/json.h"
#include "program.h"
#include "transport/roce/congestion/congestion.h"

namespace nupa::test {
namespace {

using Words = std::vector<std::string>;

Start run_sh(const std::string& script, Words options = {}) {
  Start start;
  start.arguments = {"run"};
  start.arguments.insert(start.arguments.end(), options.begin(), options.end());
  start.arguments.insert(start.arguments.end(), {"--", "sh", "-c", script});
  return start;
}

/// How many lines it says, each for people.
void expect_usage(const Words& arguments) {
  const Said said = run_nupa(arguments);
  std::string all;
  for (const std::string& word : arguments) all += word + " ";
  EXPECT_EQ(said.status, 2) << all;
  EXPECT_EQ(said.out, "") << all;
  EXPECT_EQ(lines_of(said.err).size(), 1u) << all << said.err;
  EXPECT_EQ(said.err.rfind("nupa: ", 0), 0u) << all << said.err;
}

TEST(CliHelp, Environment_NamesEachCongestionControl) {
  const std::string help = run_nupa({"--help"}).out;
  const size_t begin = help.find("NUPA_CONGESTION");
  ASSERT_NE(begin, help.npos) << help;
  const std::string line = help.substr(begin, help.find('\n', begin) - begin);
  for (const std::string_view name : roce::congestion_names()) EXPECT_TRUE(has(line, std::string(name))) << line;
}

TEST(CliRun, Status_IsThePrograms) {
  EXPECT_EQ(run_nupa(run_sh("exit 7")).status, 7);
  EXPECT_EQ(run_nupa(run_sh("kill -TERM $$")).status, 1000 + SIGTERM);
  const Folder folder;
  const std::string plain = folder.write("plain", "#!/bin/sh\n", 0600);
  const Said missing = run_nupa({"run", "--", "/nonexistent/program"});
  EXPECT_EQ(missing.status, 127);
  EXPECT_EQ(missing.err, "nupa: /nonexistent/program: No such file or directory\n");
  EXPECT_EQ(run_nupa({"run", "--", plain}).status, 126);
}

TEST(CliRun, Explain_SetsTheVariable) {
  EXPECT_EQ(run_nupa(run_sh("echo $NUPA_EXPLAIN", {"--explain"})).out, "on\n");
  EXPECT_EQ(run_nupa(run_sh("echo $NUPA_EXPLAIN")).out, "\n");
}

TEST(CliRun, Arguments_ComeToTheProgramAsTheyAre) {
  EXPECT_EQ(
      run_nupa({"run", "--", "printf", "<%s>", "two words", "", "--help", "--", "[a,b]", "-x", "--json=1", "a\nb"}).out,
      "<two words><><--help><--><[a,b]><-x><--json=1><a\nb>");
  // Without "--" the first word that is no option begins it.
  EXPECT_EQ(run_nupa({"run", "--transport", "shm", "printf", "<%s>", "--verbose", "--"}).out, "<--verbose><-->");
  EXPECT_EQ(run_nupa({"run", "--transport=shm", "printf", "<%s>", "--transport"}).out, "<--transport>");
  EXPECT_EQ(run_nupa({"launch", "-n", "1", "--no-label", "printf", "<%s>", "-n"}).out, "<-n>\n");
  const Said dashes = run_nupa({"run", "--", "--verbose"});
  EXPECT_EQ(dashes.status, 127);
  EXPECT_TRUE(has(dashes.err, "nupa: --verbose: ")) << dashes.err;
}

/// The lines, without folders of libraries that this machine lacks (libmlx5 and others), which are at the end.
Words without_providers(Words lines) {
  for (std::string& line : lines)
    for (size_t at = line.find("/providers/"); at != line.npos; at = line.find("/providers/"))
      line.erase(line.rfind(':', at), line.find(':', at) - line.rfind(':', at));
  return lines;
}

TEST(CliRun, Environment_HasTheLibrariesInFront) {
  Start start = run_sh("echo \"$LD_LIBRARY_PATH\"; echo \"$LD_PRELOAD\"");
  start.environment = {{"LD_LIBRARY_PATH", "/first:/second"}, {"LD_PRELOAD", "libdl.so.2"}};
  const Words both = without_providers(lines_of(run_nupa(start).out));
  ASSERT_EQ(both.size(), 2u);
  EXPECT_TRUE(both[0].ends_with(":/first:/second")) << both[0];
  const std::string folder = both[0].substr(0, both[0].size() - std::string(":/first:/second").size());
  EXPECT_EQ(::access((folder + "/libibverbs.so.1").c_str(), R_OK), 0) << folder;
  const std::string preloaded = folder + "/libibverbs.so.1:" + folder + "/librdmacm.so.1:" + folder +
                                "/names/libibverbs.so:" + folder + "/names/librdmacm.so:" + folder +
                                "/libnupa-preload.so";
  EXPECT_EQ(both[1], preloaded + ":libdl.so.2");
  const Words alone = {folder, preloaded};
  start.environment = {{"LD_LIBRARY_PATH", ""}, {"LD_PRELOAD", ""}};
  EXPECT_EQ(without_providers(lines_of(run_nupa(start).out)), alone);
  start.without = {"LD_LIBRARY_PATH", "LD_PRELOAD"};
  EXPECT_EQ(without_providers(lines_of(run_nupa(start).out)), alone);
}

// A wheel brings a libibverbs under a name of its own, and may bring a C++ library, older or newer than this machine's.
TEST(CliRun, Program_WithItsOwnLibrary_UsesNupas) {
  const Folder folder;
  const std::string versions = folder.write("versions", "IBVERBS_1.1 { global: ibv_get_device_list; };");
  built(folder, "libibverbs-3f2a.so.1", "void* ibv_get_device_list(int* n) { *n = -1; return 0; }",
        "-shared -fPIC -Wl,--version-script=" + versions);
  const std::string program =
      built(folder, "user",
            "#include <stdio.h>\nvoid* ibv_get_device_list(int*);\n"
            "int main() { int n = -2; ibv_get_device_list(&n); printf(\"%d\\n\", n > 0); return 0; }",
            (folder / "libibverbs-3f2a.so.1") + " -Wl,-rpath," + (folder / ""));
  EXPECT_EQ(run_nupa({"run", "--", program}).out, "1\n");
}

// As packages of conda are: libraries in a folder that the program's DT_RPATH names, which comes before
// LD_LIBRARY_PATH.
TEST(CliRun, Program_ThatLoadsTheNameWithoutANumber_GetsNupas) {
  const Folder folder;
  built(folder, "libibverbs.so", "int ibv_get_device_list;", "-shared -fPIC");
  built(folder, "librdmacm.so", "int rdma_create_event_channel;", "-shared -fPIC");
  const std::string program = built(
      folder, "user",
      "#include <dlfcn.h>\n#include <stdio.h>\n"
      "int main() { void* verbs = dlopen(\"libibverbs.so\", RTLD_NOW); void* cm = dlopen(\"librdmacm.so\", RTLD_NOW);\n"
      "printf(\"%d\\n\", verbs && cm && dlsym(verbs, \"ibv_open_device\") && dlsym(cm, \"rdma_connect\")); return 0; }",
      "-Wl,--disable-new-dtags,-rpath," + (folder / ""));
  EXPECT_EQ(run_nupa({"run", "--", program}).out, "1\n");
}

TEST(CliRun, PreloadedLibraries_BringNoCppLibrary) {
  const std::string libraries = run_nupa(run_sh("LD_TRACE_LOADED_OBJECTS=1 /bin/true")).out;
  EXPECT_TRUE(has(libraries, "libibverbs.so.1")) << libraries;
  EXPECT_FALSE(has(libraries, "libstdc++")) << libraries;
}

/// The library that leads paths to the tree of files.
std::string path_library() {
  const Words folders = lines_of(run_nupa(run_sh("echo \"${LD_LIBRARY_PATH%%:*}\"")).out);
  return folders.empty() ? "" : folders[0] + "/libnupa-preload.so";
}

TEST(CliRun, PreloadedOpen_KeepsTheModeOfAnUnnamedFile) {  // man 2 open, O_TMPFILE
  void* const library = dlopen(path_library().c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  for (const char* const name : {"open", "open64"}) {
    auto* const its_open = reinterpret_cast<int (*)(const char*, int, ...)>(dlsym(library, name));
    ASSERT_NE(its_open, nullptr) << name;
    const base::UniqueFd file(its_open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    struct stat status;
    ASSERT_EQ(fstat(file.get(), &status), 0) << name << ": " << strerror(errno);
    EXPECT_EQ(status.st_mode & 0777, 0600u) << name;
  }
  dlclose(library);
}

TEST(CliRun, Program_FindsTheDevicesAsThoseOfAnAdapter) {
  const std::string device = "/sys/class/infiniband/nupa0";
  EXPECT_EQ(run_nupa({"run", "--", "cat", device + "/ports/1/state"}).out, "4: ACTIVE\n");
  EXPECT_EQ(run_nupa({"run", "--", "readlink", "-f", device + "/device"}).out, "/sys/devices/virtual/nupa/nupa0\n");
  EXPECT_EQ(run_nupa(run_sh("cd " + device + " && cat node_type && cat /sys/class/infiniband_verbs/uverbs0/ibdev")).out,
            "1: CA\nnupa0\n");
  EXPECT_EQ(run_nupa(run_sh("test -c /dev/infiniband/uverbs0")).status, 0);
  const Folder folder;
  std::filesystem::create_directories(folder / "tree/sys/class/infinibandx");
  const std::string with_tree = "env NUPA_SYSFS=" + (folder / "tree") + " test -e /sys/class/infinibandx";
  EXPECT_NE(run_nupa(run_sh(with_tree)).status, 0) << "another folder with the same beginning";
}

TEST(CliRun, PreloadedRealpath_BeginsWithSys) {
  const std::string path = path_library();
  const Folder folder;
  std::filesystem::create_directories(folder / "tree/sys/class/infiniband/device");
  setenv("NUPA_SYSFS", (folder / "tree").c_str(), 1);
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  unsetenv("NUPA_SYSFS");
  ASSERT_NE(library, nullptr) << dlerror();
  auto* const its_realpath = reinterpret_cast<char* (*)(const char*, char*)>(dlsym(library, "realpath"));
  ASSERT_NE(its_realpath, nullptr);
  char resolved[PATH_MAX] = "";
  EXPECT_EQ(its_realpath("/sys/class/infiniband/./device", resolved), resolved);
  EXPECT_STREQ(resolved, "/sys/class/infiniband/device");
  dlclose(library);
}

TEST(CliRun, ProgramWithoutATree_FindsTheFileThatUcxAsksFor) {
  EXPECT_EQ(run_nupa(run_sh("env -u NUPA_SYSFS test -c /dev/infiniband/uverbs0")).status, 0);
  EXPECT_NE(run_nupa(run_sh("env -u NUPA_SYSFS test -e /sys/class/infiniband/nupa0")).status, 0);
}

TEST(CliRun, RuntimeDirectoryThatCannotBeUsed_ProgramRunsAndTheReasonIsPrinted) {
  const Folder folder;
  const std::string file = folder.write("file", "", 0600);
  Start start = run_sh("echo here");
  start.environment = {{"NUPA_RUNTIME_DIR", file}};
  const Said said = run_nupa(start);
  EXPECT_EQ(said.out, "here\n");
  EXPECT_EQ(said.err.rfind("nupa: the program does not find its devices in /sys/class/infiniband: ", 0), 0u)
      << said.err;
  EXPECT_TRUE(has(said.err, file)) << said.err;
}

TEST(CliRun, Transport_OfTheOptionGoesBeforeTheEnvironments) {
  const auto transport = [](Words options, const std::string& environment) {
    Start start = run_sh("echo is=$NUPA_TRANSPORT", std::move(options));
    start.environment["NUPA_TRANSPORT"] = environment;
    return run_nupa(start).out;
  };
  EXPECT_EQ(transport({}, "shm"), "is=shm\n");
  EXPECT_EQ(transport({"--transport", "roce"}, "shm"), "is=roce\n");
  EXPECT_EQ(transport({"--transport", "auto"}, ""), "is=auto\n");
  EXPECT_EQ(transport({"--transport", "shm,roce"}, ""), "is=shm,roce\n");
  EXPECT_EQ(transport({"--transport", "window"}, ""), "is=window\n");
  EXPECT_EQ(transport({}, ""), "is=\n");
}

TEST(CliRun, Verbose_PrintsTheSettingsAndKeepsTheLogLevel) {
  Start start = run_sh("echo $NUPA_LOG", {"--verbose"});
  start.environment = {{"NUPA_TRANSPORT", ""}};
  start.without = {"NUPA_LOG"};
  Said said = run_nupa(start);
  EXPECT_EQ(said.out, "info\n");
  EXPECT_EQ(said.err.rfind("nupa: running sh with libraries from /", 0), 0u) << said.err;
  EXPECT_TRUE(has(said.err, ", transport auto\n")) << said.err;
  start.environment = {{"NUPA_LOG", "error"}, {"NUPA_TRANSPORT", "shm"}};
  start.without = {};
  said = run_nupa(start);
  EXPECT_EQ(said.out, "error\n");
  EXPECT_TRUE(has(said.err, ", transport shm\n")) << said.err;
  EXPECT_EQ(run_nupa(run_sh("true")).err, "");
}

TEST(CliRun, WrongSetting_IsStatusTwoAndTheProgramIsNotStarted) {
  for (const auto& [name, value] :
       std::vector<std::pair<std::string, std::string>>{{"NUPA_LOG", "loud"},
                                                        {"NUPA_REMAP", "perhaps"},
                                                        {"NUPA_SOCKETS_CONNECT_MS", "0"},
                                                        {"NUPA_SOCKETS_CONFIG", "/nonexistent"},
                                                        {"VERBS_LOG_LEVEL", "5"},
                                                        {"NUPA_CCL_TRACE", "/nonexistent/a/b"},
                                                        {"NUPA_DEVICES", "lo,lo"},
                                                        {"NUPA_TRANSPORT", "pigeon"},
                                                        {"NUPA_CCL_ALGO", "ring"},
                                                        {"NUPA_CCL_ROOT", "bogus"},
                                                        {"NUPA_RANK", "x"},
                                                        {"NUPA_CONGESTION", "reno"}}) {
    Start start = run_sh("echo started");
    start.environment[name] = value;
    const Said said = run_nupa(start);
    EXPECT_EQ(said.status, 2) << name;
    EXPECT_EQ(said.out, "") << name;
    EXPECT_EQ(said.err.rfind("nupa: run: " + name + "=" + value + ": ", 0), 0u) << said.err;
    EXPECT_EQ(lines_of(said.err).size(), 1u) << said.err;
    start.environment[name] = "";
    EXPECT_EQ(run_nupa(start).out, "started\n") << name << " is empty";
  }
}

TEST(CliRun, SettingsThatTheCommandReplaces_AreNotChecked) {
  Start start = run_sh("echo $NUPA_TRANSPORT", {"--transport", "shm"});
  start.environment["NUPA_TRANSPORT"] = "pigeon";
  EXPECT_EQ(run_nupa(start).out, "shm\n");
  start.arguments = {"launch", "-n", "1", "--no-label", "--", "sh", "-c", "echo $NUPA_RANK"};
  start.environment = {{"NUPA_RANK", "x"}, {"NUPA_WORLD_SIZE", "0"}, {"NUPA_CCL_ROOT", "bogus"}};
  EXPECT_EQ(run_nupa(start).out, "0\n");
  start.environment = {{"NUPA_LOG", "loud"}};
  const Said said = run_nupa(start);
  EXPECT_EQ(said.status, 2);
  EXPECT_EQ(said.err, "nupa: launch: NUPA_LOG=loud: expected error, warn, info or debug\n");
}

TEST(CliRun, InterfaceThatDoesNotExistHere_ProgramIsStarted) {
  // The program may enter another network namespace.
  Start start = run_sh("echo started");
  start.environment["NUPA_DEVICES"] = "nupa-no-such";
  EXPECT_EQ(run_nupa(start).out, "started\n");
}

TEST(CliUsage, WrongUsage_IsStatusTwoAndOneLine) {
  for (const Words& arguments : std::vector<Words>{{},
                                                   {"--bogus"},
                                                   {"frobnicate"},
                                                   {"run"},
                                                   {"run", "--"},
                                                   {"run", "--bogus", "--", "true"},
                                                   {"run", "--transport", "pigeon", "--", "true"},
                                                   {"run", "--transport"},
                                                   {"devices", "--bogus"},
                                                   {"stat", "--watch", "0"},
                                                   {"stat", "--watch", "-1"},
                                                   {"stat", "--watch", "soon"},
                                                   {"stat", "more"},
                                                   {"clean", "--all"},
                                                   {"doctor", "--bogus"}})
    expect_usage(arguments);
}

/// A runtime directory with the sockets of a process that lives, and of one that does not.
class CliClean : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(mkdir(directory.c_str(), 0700), 0);
    live = socket_at("1.sock", true);
    dead = socket_at("2.sock", false);
    live_name = socket_at("net,lab,n1.name", true);
    dead_name = socket_at("net,lab,n2.name", false);
    ASSERT_TRUE(live && live_name);
    EXPECT_TRUE(std::filesystem::exists(directory + "/2.sock"));
  }
  base::UniqueFd socket_at(const std::string& name, bool stays) const {
    base::UniqueFd made(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = directory + "/" + name;
    EXPECT_LT(path.size(), sizeof address.sun_path);
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    EXPECT_EQ(bind(made.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0) << strerror(errno);
    EXPECT_EQ(listen(made.get(), 4), 0);
    if (!stays) made.reset();
    return made;
  }
  Said clean(Words options = {}) const {
    options.insert(options.begin(), "clean");
    Start start;
    start.arguments = options;
    start.environment["NUPA_RUNTIME_DIR"] = directory;
    return run_nupa(start);
  }
  bool is_there(const std::string& name) const { return std::filesystem::exists(directory + "/" + name); }

  const Folder folder;
  const std::string directory = folder / "run";
  base::UniqueFd live, dead, live_name, dead_name;
};

TEST_F(CliClean, Clean_FilesOfExitedProcesses_AreRemoved) {
  const Said said = clean();
  EXPECT_EQ(said.status, 0) << said.err;
  EXPECT_EQ(lines_of(said.out),
            (Words{"removed " + directory + "/2.sock", "removed " + directory + "/net,lab,n2.name"}));
  EXPECT_TRUE(is_there("1.sock") && is_there("net,lab,n1.name"));
  EXPECT_FALSE(is_there("2.sock") || is_there("net,lab,n2.name"));
  EXPECT_EQ(clean().out, "nothing to clean in " + directory + "\n");
}

TEST_F(CliClean, Clean_NamesAlone_AreRemoved) {
  std::filesystem::remove(directory + "/2.sock");
  EXPECT_EQ(clean().out, "removed " + directory + "/net,lab,n2.name\n");
}

TEST_F(CliClean, Clean_DryRun_ListsAndRemovesNothing) {
  const Said said = clean({"--dry-run"});
  EXPECT_EQ(said.status, 0) << said.err;
  EXPECT_EQ(lines_of(said.out),
            (Words{"would remove " + directory + "/2.sock", "would remove " + directory + "/net,lab,n2.name"}));
  EXPECT_TRUE(is_there("2.sock") && is_there("net,lab,n2.name"));
}

TEST_F(CliClean, Clean_FilesOfOthers_AreKept) {
  folder.write("run/notes", "mine");
  const Said said = clean();
  EXPECT_TRUE(has(said.out, "skipped: " + directory + "/notes (not a file of NUPA)\n")) << said.out;
  EXPECT_TRUE(is_there("notes"));
}

TEST_F(CliClean, Clean_TreeOfDevices_IsRemovedWhenNoProcessLives) {
  const std::string tree = "tree-0123456789abcdef";
  std::filesystem::create_directories(directory + "/" + tree + "/sys/class");
  EXPECT_FALSE(has(clean().out, tree));
  EXPECT_TRUE(is_there(tree)) << "a process lives";
  live.reset();
  EXPECT_FALSE(has(clean({"--dry-run"}).out, tree)) << "a service lives";
  live_name.reset();
  EXPECT_TRUE(has(clean({"--dry-run"}).out, "would remove " + directory + "/" + tree + "\n"));
  EXPECT_TRUE(is_there(tree));
  EXPECT_TRUE(has(clean().out, "removed " + directory + "/" + tree + "\n"));
  EXPECT_FALSE(is_there(tree));
  EXPECT_EQ(clean().out, "nothing to clean in " + directory + "\n");
}

TEST_F(CliClean, Directory_OpenToOthers_IsRefused) {
  ASSERT_EQ(chmod(directory.c_str(), 0755), 0);
  const Said said = clean();
  EXPECT_EQ(said.status, 1);
  EXPECT_TRUE(has(said.err, "nupa: the runtime directory " + directory + " is open to other users: chmod 700 it\n"))
      << said.err;
  EXPECT_TRUE(is_there("2.sock"));
}

Said doctor(const std::function<bool()>& in_child, const std::map<std::string, std::string>& environment = {}) {
  Start start;
  start.arguments = {"doctor", "--json"};
  start.environment = environment;
  start.in_child = in_child;
  return run_nupa(start);
}

/// The level of a finding; empty: it is not there.
std::string level_of(const Said& said, const std::string& subject) {
  for (const auto& finding : parse_json(said.out).value_or(nlohmann::json()))
    if (finding["subject"].get<std::string>().rfind(subject, 0) == 0) return finding["level"];
  return {};
}

TEST(CliDoctor, EachProblem_IsStatusOne) {
  const Folder folder;
  // A note is none, here that the program would find another library.
  const std::map<std::string, std::string> own = {{"NUPA_RUNTIME_DIR", folder / "run"},
                                                  {"LD_LIBRARY_PATH", "/opt/libibverbs"}};
  const auto limit = [](int resource, rlim_t value) {
    return [=] {
      rlimit set{};
      const auto which = static_cast<__rlimit_resource>(resource);
      if (getrlimit(which, &set) != 0) return false;
      set.rlim_cur = value;
      return setrlimit(which, &set) == 0;
    };
  };
  Said said = doctor(limit(RLIMIT_NOFILE, 256), own);
  EXPECT_EQ(said.status, 0) << said.out;
  EXPECT_EQ(level_of(said, "open files"), "OK");
  EXPECT_EQ(level_of(said, "drop-in libraries"), "NOTE");
  said = doctor(limit(RLIMIT_NOFILE, 255), own);
  EXPECT_EQ(said.status, 1);
  EXPECT_EQ(level_of(said, "open files"), "PROBLEM");
  said = doctor(limit(RLIMIT_FSIZE, 1 << 20), own);
  EXPECT_EQ(said.status, 1);
  EXPECT_EQ(level_of(said, "file size"), "PROBLEM");
  ASSERT_EQ(mkdir((folder / "open").c_str(), 0755), 0);
  said = doctor([] { return true; }, {{"NUPA_RUNTIME_DIR", folder / "open"}});
  EXPECT_EQ(said.status, 1);
  EXPECT_EQ(level_of(said, "runtime directory"), "PROBLEM");
}

}  // namespace
}  // namespace nupa::test
