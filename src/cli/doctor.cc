// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "base/settings.h"
#include "base/shared_file.h"
#include "host/runtime_dir.h"
#include "cli/commands.h"
#include "cli/finding.h"
#include "cli/loaded.h"
#include "cli/settings.h"
#include "copy/choice.h"
#include "json/json.h"
#include "memory/write_guard.h"

namespace nupa::cli {
namespace {

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

Finding runtime_directory() {
  auto dir = host::RuntimeDir::open();
  if (dir) {
    // Each process makes a socket in the folder.
    const std::string name = "doctor-" + std::to_string(getpid());
    const auto claimed = (*dir)->claim_name(name);
    if (claimed) (*dir)->remove_name(name);
    if (claimed) return {"OK", "runtime directory", (*dir)->path(), ""};
    return {"PROBLEM", "runtime directory", claimed.error().what(),
            "make room in the directory and allow writing to it, or set NUPA_RUNTIME_DIR to another one"};
  }
  return {"PROBLEM", "runtime directory", dir.error().what(),
          "set NUPA_RUNTIME_DIR to a directory of your own with mode 0700"};
}

Finding limit(const char* name, int resource, rlim_t enough, const char* unit, const char* remedy) {
  rlimit value{};
  getrlimit(static_cast<__rlimit_resource>(resource), &value);
  const bool fine = value.rlim_cur == RLIM_INFINITY || value.rlim_cur >= enough;
  const std::string found = value.rlim_cur == RLIM_INFINITY ? "unlimited" : fmt::format("{} {}", value.rlim_cur, unit);
  return {fine ? "OK" : "PROBLEM", name, found, fine ? "" : remedy};
}

Finding shared_memory() {
  auto file = base::make_shared_file("nupa-doctor");
  if (file && base::grow_shared_file(file->get(), 64 << 20)) return {"OK", "memfd", "works", ""};
  return {"PROBLEM", "memfd", file ? "cannot grow to 64 MiB" : file.error().what(),
          "allow memfd_create in the seccomp profile, and raise ulimit -f"};
}

/// Returns 0 if a process can read the memory of another process of this user that is not its descendant, otherwise the
/// errno value.
int cross_memory_error() {
  static uint64_t here = 1;
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) return errno;
  if (child == 0) {
    uint64_t there = 0;
    iovec mine{&there, sizeof there};
    iovec theirs{&here, sizeof here};
    _exit(process_vm_readv(parent, &mine, 1, &theirs, 1, 0) == sizeof there ? 0 : errno);
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : ECHILD;
}

Finding cross_memory() {
  const int error = cross_memory_error();
  if (error == 0) return {"OK", "cross-memory copies", "allowed", ""};
  const std::string scope = first_line("/proc/sys/kernel/yama/ptrace_scope");
  const bool by_yama = !scope.empty() && scope != "0";
  return {"NOTE", "cross-memory copies",
          by_yama ? "forbidden by ptrace_scope " + scope : fmt::format("forbidden ({})", std::strerror(error)),
          std::string("the peer's service thread copies unaligned ends of buffers (slower); to avoid it: ") +
              (by_yama ? "sysctl kernel.yama.ptrace_scope=0"
                       : "allow process_vm_readv and process_vm_writev in the container's seccomp profile")};
}

Finding process_folder() {
  if (::access("/proc/self/fd", R_OK) == 0) return {"OK", "/proc", "mounted", ""};
  return {"PROBLEM", "/proc", "not mounted", "mount -t proc proc /proc (processes find each other through it)"};
}

Finding write_guard() {
  switch (memory::WriteGuard::available()) {
    case memory::WriteGuard::Kind::kFull:
      return {"OK", "userfaultfd", "full", ""};
    case memory::WriteGuard::Kind::kUserOnly:
      return {"NOTE", "userfaultfd", "user mode only",
              "peers access buffers that a program with several threads registers by kernel copies (about 0.3 us "
              "slower); to avoid it: sysctl vm.unprivileged_userfaultfd=1"};
    default:
      return {"NOTE", "userfaultfd", "not available",
              "peers access buffers that a program with several threads registers by kernel copies (about 0.3 us "
              "slower)"};
  }
}

Finding map_count() {
  const std::string text = first_line("/proc/sys/vm/max_map_count");
  const bool fine = text.empty() || std::atol(text.c_str()) >= 65530;
  return {fine ? "OK" : "NOTE", "vm.max_map_count", text, fine ? "" : "sysctl vm.max_map_count=65530 or more"};
}

Finding huge_pages() {
  const std::string text = first_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  const bool never = text.find("[never]") != std::string::npos || text.find("[deny]") != std::string::npos;
  return {never ? "NOTE" : "OK", "huge pages for shared memory", text,
          never ? "buffers of many MiB copy faster with `echo advise > "
                  "/sys/kernel/mm/transparent_hugepage/shmem_enabled`"
                : ""};
}

Finding cores() {
  const unsigned count = std::thread::hardware_concurrency();
  return {count >= 2 ? "OK" : "NOTE", "processor cores", std::to_string(count),
          count >= 2 ? "" : "two polling processes share the core, and wait for the scheduler"};
}

Finding copy_engine() {
  const auto choice = copy::chosen_engine();
  if (!choice) return {"PROBLEM", "copy engine", choice.error().what(), "correct or unset the variable"};
  copy::Report report = copy::report(*choice);
  const char* const level = report.level == copy::Report::Level::kFine   ? "OK"
                            : report.level == copy::Report::Level::kNote ? "NOTE"
                                                                         : "PROBLEM";
  return {level, "copy engine", std::move(report.found), std::move(report.remedy)};
}

Finding settings() {
  const std::string wrong = wrong_settings(CheckedFor::kThisMachine);
  if (wrong.empty()) return {"OK", "settings", "NUPA_* variables have accepted values", ""};
  return {"PROBLEM", "settings", wrong, "correct or unset the variable (docs/reference/environment.md)"};
}

Finding libraries() {
  const std::string folder = dropin_folder();
  if (folder.empty())
    return {"PROBLEM", "drop-in libraries", "not found",
            "build all targets of NUPA, or install it with cmake --install"};
  const char* path = base::setting("LD_LIBRARY_PATH");
  if (path != nullptr && std::string(path).find("libibverbs") != std::string::npos)
    return {"NOTE", "drop-in libraries", folder, "LD_LIBRARY_PATH names another libibverbs: remove that folder"};
  return {"OK", "drop-in libraries", folder, ""};
}

std::vector<Finding> findings_of_machine() {
  std::vector<Finding> findings = {
      process_folder(),
      libraries(),
      settings(),
      runtime_directory(),
      shared_memory(),
      limit("open files (ulimit -n)", RLIMIT_NOFILE, 256, "descriptors", "ulimit -n 1024 or more"),
      limit("file size (ulimit -f)", RLIMIT_FSIZE, 256 << 20, "bytes", "ulimit -f unlimited (limits shared memory)"),
      limit("address space (ulimit -v)", RLIMIT_AS, size_t{4} << 30, "bytes",
            "ulimit -v unlimited (the shared memory of each peer process is mapped)"),
      write_guard(),
      cross_memory(),
      map_count(),
      huge_pages(),
      cores(),
      copy_engine()};
  for (Finding& finding : pool_findings()) findings.push_back(std::move(finding));
  return findings;
}

}  // namespace

int doctor(const DoctorOptions& options) {
  const std::vector<Finding> findings = options.pid != 0          ? findings_of_process(options.pid)
                                        : options.program.empty() ? findings_of_machine()
                                                                  : findings_of_program(options.program[0]);
  bool problem = false;
  nlohmann::json out = nlohmann::json::array();
  for (const Finding& finding : findings) {
    problem = problem || finding.level[0] == 'P';
    if (options.json) {
      out.push_back({{"level", finding.level},
                     {"subject", finding.subject},
                     {"found", finding.found},
                     {"remedy", finding.remedy}});
    } else {
      fmt::print("{:<8} {:<30} {}\n", finding.level, finding.subject, finding.found);
      if (!finding.remedy.empty()) fmt::print("{:<8} {:<30} -> {}\n", "", "", finding.remedy);
    }
  }
  if (options.json) fmt::print("{}\n", json_text(out, 2));
  return problem ? 1 : 0;
}

}  // namespace nupa::cli
