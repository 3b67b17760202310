// SPDX-License-Identifier: Apache-2.0
/// The findings of `nupa doctor` about pools: can this process use them, as which host, and how fast are they.
#include <fmt/core.h>
#include <linux/magic.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <optional>

#include "base/boot_id.h"
#include "base/settings.h"
#include "cli/finding.h"
#include "transport/pool/medium/admin.h"
#include "transport/pool/medium/cpu.h"
#include "transport/pool/medium/open_doorbell.h"
#include "transport/pool/medium/spec.h"

namespace nupa::cli {
namespace {

constexpr int64_t kHeartbeatsNs = 600'000'000;  ///< they come ten times a second
constexpr double kSlowLoadNs = 20;              ///< a word of cached memory takes less
constexpr const char* kPoolGuide = "docs/guides/cxl-and-pcie.md";

std::string spec_remedy(const std::string& source) {
  return "correct " + source + ", for example: file:/dev/shm/pool,host=0 (" + kPoolGuide + ")";
}

std::string open_remedy(const pool::Spec& spec, const Error& error) {
  const std::string text = fmt::format("{},host={}", spec.medium(), spec.host);
  switch (error.code()) {
    case ENOENT:
      if (spec.kind == pool::MediumKind::kFile)
        return fmt::format("make it on this machine once: nupa pool format --pool {} --size 64M --hosts 2", text);
      return "correct the name of the device";
    case EACCES:
    case EPERM:
      return "run the program as the owner of the file, or give this user the right to read and write it";
    case ENXIO:
      return "daxctl reconfigure-device -m devdax " + spec.name;
    case ENODEV:
      return "lspci -D lists the functions; the text says what is missing";
    default:
      return std::string("see ") + kPoolGuide;
  }
}

/// The kernel writes a file on a disk back from time to time, and its pages are not shared by virtual machines.
bool is_in_memory(const std::string& path) {
  struct statfs status {};
  if (statfs(path.c_str(), &status) != 0) return true;
  return status.f_type == TMPFS_MAGIC || status.f_type == HUGETLBFS_MAGIC || status.f_type == RAMFS_MAGIC;
}

std::string hosts_text(const std::vector<uint16_t>& hosts) {
  std::string text;
  for (const uint16_t host : hosts) text += (text.empty() ? "" : ", ") + std::to_string(host);
  return text;
}

Finding host_finding(const pool::PoolMemory& memory, const pool::PoolStatus& status) {
  const uint16_t own = memory.spec().host;
  const std::string subject = "pool: number of this host";
  if (own >= status.hosts.size())
    return {"PROBLEM", subject,
            fmt::format("host={}: the pool was formatted for hosts 0 to {}", own, status.hosts.size() - 1),
            fmt::format("set host= to a number from 0 to {}, another one on each host", status.hosts.size() - 1)};
  std::vector<uint16_t> free;
  for (const pool::HostStatus& host : status.hosts)
    if (!host.is_alive && host.host != own) free.push_back(host.host);
  const pool::HostStatus& host = status.hosts[own];
  const std::string of = fmt::format("{} of 0 to {}", own, status.hosts.size() - 1);
  if (!host.is_known) return {"OK", subject, of + ", free", ""};
  const bool is_same_boot = host.line.boot_id == base::boot_id();
  if (!is_same_boot && host.is_alive)
    return {"PROBLEM", subject, of + ", in use by another machine: its heartbeat changes",
            "give each machine its own host=N" +
                (free.empty() ? ": all numbers are in use (nupa pool format --hosts)" : "; free: " + hosts_text(free))};
  const bool is_same_file =
      host.line.file_device == memory.file_device() && host.line.file_inode == memory.file_inode();
  if (is_same_boot && !is_same_file && host.is_alive)
    return {"PROBLEM", subject, of + ", in use by processes that opened the pool by another file",
            "use the same path in all containers and namespaces of one host, or another host=N"};
  if (!is_same_boot)
    return {"OK", subject, of + ", free: an earlier boot had it (the first process watches its heartbeats for 2.5 s)",
            ""};
  const auto alive = std::count_if(host.processes.begin(), host.processes.end(),
                                   [](const pool::ProcessStatus& process) { return process.is_alive; });
  return {"OK", subject, fmt::format("{}, this machine has it; {} process{}", of, alive, alive == 1 ? "" : "es"), ""};
}

Finding others_finding(const pool::PoolMemory& memory, const pool::PoolStatus& status) {
  std::vector<uint16_t> alive;
  for (const pool::HostStatus& host : status.hosts)
    if (host.is_alive && host.host != memory.spec().host) alive.push_back(host.host);
  const std::string subject = "pool: other hosts";
  if (!alive.empty()) return {"OK", subject, "alive: " + hosts_text(alive), ""};
  return {"OK", subject, "none alive at present", ""};
}

Finding caches_finding(const pool::PoolMemory& memory) {
  const char* const name = pool::name_of(memory.caches());
  const std::string load =
      memory.load_ns() > 0 ? fmt::format(", an 8-byte load takes {:.1f} ns", memory.load_ns()) : "";
  const std::string subject = "pool: caches";
  switch (memory.caches()) {
    case pool::Caches::kCoherent:
      if (memory.spec().kind == pool::MediumKind::kFile && !is_in_memory(memory.spec().name))
        return {"NOTE", subject, "coherent; the file lies on a disk",
                "the kernel writes it back again and again: put it into /dev/shm"};
      if (memory.load_ns() > kSlowLoadNs)
        return {"NOTE", subject, name + load, "no coherent memory is so slow: leave out coherence=full"};
      return {"OK", subject, name + load, ""};
    case pool::Caches::kFlushed:
      return {"OK", subject, fmt::format("flushed by {}{}", pool::name_of(pool::line_instructions()), load), ""};
    case pool::Caches::kUncached:
      return {"NOTE", subject, name + load,
              "each load crosses the bus: map the BAR write-back if the platform allows it (resourceN, not behind a "
              "bridge)"};
    case pool::Caches::kTorn:
      break;
  }
  return {"NOTE", subject, "torn: a simulation of incoherent caches for tests, which copies lines",
          "leave out coherence=none"};
}

Finding check_finding(const std::optional<pool::CheckLine>& check) {
  const std::string subject = "pool: last nupa pool check";
  if (!check) return {"OK", subject, "none by this host since the format", ""};
  char date[32] = "";
  const auto at = static_cast<time_t>(check->at_s);
  tm parts{};
  if (gmtime_r(&at, &parts) != nullptr) std::strftime(date, sizeof date, "%F %H:%M UTC", &parts);
  std::string found = fmt::format("{}: 8-byte load {:.1f} ns, {:.0f} MB/s to the pool, {:.0f} MB/s from it", date,
                                  check->load_ns, check->to_mb_per_s, check->from_mb_per_s);
  if (check->lines == 0) return {"OK", subject, found, ""};
  found += fmt::format("; with host {}: {} of {} lines right, one way {:.0f} ns", check->peer,
                       check->lines - std::min(check->wrong_lines, check->lines), check->lines, check->one_way_ns);
  if (check->wrong_lines == 0) return {"OK", subject, found, ""};
  return {"PROBLEM", subject, found, "the caches of the hosts are not coherent: set coherence=none, and check again"};
}

Finding doorbell_finding(const pool::PoolMemory& memory) {
  const std::string subject = "pool: doorbell";
  const auto doorbell = pool::open_doorbell(memory);
  if (doorbell)
    return {"OK", subject, std::string(pool::name_of((*doorbell)->line().kind)) + ": a process that waits sleeps", ""};
  const std::string found = std::string("none: ") + doorbell.error().what();
  if (memory.spec().doorbell == pool::DoorbellChoice::kNone)
    return {"NOTE", subject, found, "a process that waits wakes up 1,000 times a second; to avoid it: doorbell=auto"};
  return {"NOTE", subject, found, "a process that waits wakes up to look, up to 1,000 times a second"};
}

void add_findings(const pool::Spec& spec, std::vector<Finding>* findings) {
  const std::string name = fmt::format("{},host={}", spec.medium(), spec.host);
  const auto memory = pool::PoolMemory::open(spec);
  if (!memory) {
    findings->push_back({"PROBLEM", "pool", memory.error().what(), open_remedy(spec, memory.error())});
    return;
  }
  const auto status = pool::look_at_pool(**memory, kHeartbeatsNs);
  if (!status) {
    findings->push_back({"PROBLEM", "pool", status.error().what(),
                         "on one host: nupa pool format (the content of the medium is lost); all hosts need the same "
                         "version of NUPA"});
    return;
  }
  const uint64_t unused = (*memory)->bytes() - status->header.bytes;
  const std::string found = fmt::format("{}, layout version {}, {} hosts, {} MiB", name, status->header.version,
                                        status->header.hosts, status->header.bytes >> 20);
  if (unused >> 20 > 0)
    findings->push_back({"NOTE", "pool", fmt::format("{} of {} MiB", found, (*memory)->bytes() >> 20),
                         "the pool does not use all of the medium: nupa pool format"});
  else
    findings->push_back({"OK", "pool", found, ""});
  findings->push_back(host_finding(**memory, *status));
  findings->push_back(others_finding(**memory, *status));
  findings->push_back(caches_finding(**memory));
  findings->push_back(doorbell_finding(**memory));
  if (spec.host < status->hosts.size()) findings->push_back(check_finding(status->hosts[spec.host].check));
}

}  // namespace

std::vector<Finding> pool_findings() {
  std::vector<Finding> findings;
  const bool has_variable = base::text_setting("NUPA_POOL") != nullptr;
  const auto spec = pool::spec_from_environment();
  if (!spec)
    findings.push_back(
        {"PROBLEM", "pool", spec.error().what(), spec_remedy(has_variable ? "NUPA_POOL" : pool::kSpecFile)});
  else if (*spec)
    add_findings(**spec, &findings);
  else
    findings.push_back({"OK", "pool", std::string("none (NUPA_POOL or ") + pool::kSpecFile + " names one)", ""});
  if (has_variable && ::access(pool::kSpecFile, F_OK) == 0)
    findings.push_back({"OK", "pool: " + std::string(pool::kSpecFile), "not used: NUPA_POOL is set", ""});
  return findings;
}

}  // namespace nupa::cli
