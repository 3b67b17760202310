// SPDX-License-Identifier: Apache-2.0
/// `nupa pool`: memory that hosts share (docs/design/pool.md).
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/gid_text.h"
#include "cli/commands.h"
#include "cli/failure.h"
#include "cli/ranges.h"
#include "cli/waiting.h"
#include "json/json.h"
#include "transport/pool/medium/admin.h"
#include "transport/pool/medium/check.h"
#include "transport/pool/medium/cpu.h"
#include "transport/pool/medium/doorbell.h"
#include "transport/pool/medium/spec.h"

namespace nupa::cli {
namespace {

using nlohmann::json;

/// Heartbeats come ten times a second.
constexpr int64_t kLookNs = 600'000'000;

struct PoolOptions {
  std::string pool;  ///< empty: that of the environment
  pool::FormatOptions format;
  std::string size, ring_size;
  std::optional<uint16_t> with;
  double timeout_seconds = 30;
  bool is_alone = false;
  bool machine_readable = false;
};

/// A number of bytes: decimal digits, and K, M or G for powers of 1024.
std::optional<uint64_t> bytes_of(const std::string& text) {
  uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || number == 0) return std::nullopt;
  unsigned shift = 0;
  if (rest + 1 == end) {
    constexpr std::string_view kUnits = "KMG";
    const size_t unit = kUnits.find(*rest);
    if (unit == kUnits.npos) return std::nullopt;
    shift = static_cast<unsigned>(10 * (unit + 1));
  } else if (rest != end) {
    return std::nullopt;
  }
  if (number > UINT64_MAX >> shift) return std::nullopt;
  return number << shift;
}

CLI::Validator is_size(uint64_t least, uint64_t most, bool is_power) {
  return {[=](const std::string& text) -> std::string {
            const auto bytes = bytes_of(text);
            if (bytes && *bytes >= least && *bytes <= most && (!is_power || std::has_single_bit(*bytes))) return "";
            return fmt::format("'{}' is not accepted (expected a {} of {} to {} bytes, such as 64K or 1M)", text,
                               is_power ? "power of two" : "size", least, most);
          },
          "BYTES"};
}

std::string size_text(uint64_t bytes) {
  constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  double value = static_cast<double>(bytes);
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return bytes >> (10 * unit) << (10 * unit) == bytes ? fmt::format("{:.0f} {}", value, kUnits[unit])
                                                      : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

Result<pool::Spec> spec_of(const PoolOptions& options) {
  if (!options.pool.empty()) return pool::parse_spec(options.pool, "--pool");
  const auto spec = pool::spec_from_environment();
  if (!spec) return tl::unexpected(spec.error());
  if (!*spec) return fail(ENOENT, "no pool is given (use --pool, NUPA_POOL or ", pool::kSpecFile, ")");
  return **spec;
}

json json_of(const pool::HeaderLine& header) {
  return {{"uuid", pool::uuid_text(header.uuid)},
          {"bytes", header.bytes},
          {"hosts", header.hosts},
          {"ring_bytes", uint64_t{header.ring_lines} * pool::kLineBytes},
          {"block_bytes", header.block_bytes},
          {"records", header.records},
          {"blocks", pool::Geometry(header).blocks()}};
}

std::string text_of(const pool::HeaderLine& header) {
  return fmt::format("uuid {}, {}, {} hosts, rings of {}, {} blocks of {} and {} process records for each host",
                     pool::uuid_text(header.uuid), size_text(header.bytes), header.hosts,
                     size_text(uint64_t{header.ring_lines} * pool::kLineBytes), pool::Geometry(header).blocks(),
                     size_text(header.block_bytes), header.records);
}

int format(const PoolOptions& given, const pool::Spec& spec) {
  pool::FormatOptions options = given.format;
  if (!given.size.empty()) options.size = *bytes_of(given.size);
  if (!given.ring_size.empty()) options.ring_bytes = *bytes_of(given.ring_size);
  const Waiting waiting("heartbeats of processes in " + spec.medium());
  const auto header = pool::format_pool(spec, options);
  if (!header) return report_failure("pool", header.error().what());
  if (given.machine_readable)
    fmt::print("{}\n", json_text(json_of(*header), 2));
  else
    fmt::print("formatted {}: {}\n", spec.medium(), text_of(*header));
  return 0;
}

json json_of(const pool::BlockCounts& blocks) {
  return {{"total", blocks.total},
          {"free", blocks.free},
          {"memory", blocks.program},
          {"inboxes", blocks.inbox},
          {"quarantined", blocks.quarantined},
          {"damaged", blocks.is_damaged}};
}

json json_of(const pool::ProcessStatus& process) {
  json addresses = json::array(), groups = json::array();
  for (const Gid& gid : process.description.gids) addresses.push_back(base::gid_text(gid));
  for (const Gid& gid : process.description.groups) groups.push_back(base::gid_text(gid));
  return {{"record", process.record},
          {"pid", process.line.pid},
          {"uid", process.line.uid},
          {"command", std::string(process.line.command, strnlen(process.line.command, sizeof process.line.command))},
          {"alive", process.is_alive},
          {"doorbell", pool::name_of(process.doorbell)},
          {"channels", process.channels},
          {"slots", process.description.slots},
          {"addresses", addresses},
          {"groups", groups}};
}

int status(const PoolOptions& given, const pool::Spec& spec) {
  const auto memory = pool::PoolMemory::open(spec);
  if (!memory) return report_failure("pool", memory.error().what());
  const auto found = pool::look_at_pool(**memory, kLookNs);
  if (!found) return report_failure("pool", found.error().what());
  const char* const caches = pool::name_of((*memory)->caches());
  if (given.machine_readable) {
    json out = json_of(found->header);
    out["medium"] = spec.medium();
    out["caches"] = caches;
    out["host"] = spec.host;
    out["by_host"] = json::array();
    for (const pool::HostStatus& host : found->hosts) {
      json processes = json::array();
      for (const pool::ProcessStatus& process : host.processes) processes.push_back(json_of(process));
      out["by_host"].push_back({{"host", host.host},
                                {"known", host.is_known},
                                {"alive", host.is_alive},
                                {"boot_id", host.is_known ? pool::uuid_text(host.line.boot_id) : ""},
                                {"processes", processes},
                                {"blocks", json_of(host.blocks)}});
    }
    fmt::print("{}\n", json_text(out, 2));
    return 0;
  }
  fmt::print("{} ({}), this is host {}\n{}\n", spec.medium(), caches, spec.host, text_of(found->header));
  fmt::print("{:<5} {:<7} {:>9} {:>8} {:>8} {:>8} {:>8} {:>11}\n", "HOST", "STATE", "PROCESSES", "BLOCKS", "FREE",
             "MEMORY", "INBOXES", "QUARANTINED");
  for (const pool::HostStatus& host : found->hosts) {
    const char* const state = host.is_alive ? "alive" : !host.is_known ? "unknown" : "silent";
    fmt::print("{:<5} {:<7} {:>9} {:>8} {:>8} {:>8} {:>8} {:>11}{}\n", host.host, state, host.processes.size(),
               host.blocks.total, host.blocks.free, host.blocks.program, host.blocks.inbox, host.blocks.quarantined,
               host.blocks.is_damaged ? "  (the block table is damaged: nupa pool format)" : "");
  }
  bool has_processes = false;
  for (const pool::HostStatus& host : found->hosts)
    for (const pool::ProcessStatus& process : host.processes) {
      if (!std::exchange(has_processes, true))
        fmt::print("{:<5} {:>6} {:<24} {:<7} {:>8}  {}\n", "HOST", "RECORD", "PROCESS", "STATE", "CHANNELS",
                   "ADDRESSES");
      std::string addresses;
      for (const Gid& gid : process.description.gids) addresses += (addresses.empty() ? "" : " ") + base::gid_text(gid);
      const std::string command(process.line.command, strnlen(process.line.command, sizeof process.line.command));
      fmt::print("{:<5} {:>6} {:<24} {:<7} {:>8}  {}\n", host.host, process.record,
                 fmt::format("{}[{}]", command, process.line.pid), process.is_alive ? "alive" : "silent",
                 process.channels, addresses);
    }
  return 0;
}

int clean_pool(const PoolOptions& given, const pool::Spec& spec) {
  const auto memory = pool::PoolMemory::open(spec);
  if (!memory) return report_failure("pool", memory.error().what());
  const Waiting waiting("heartbeats of earlier processes of host " + std::to_string(spec.host));
  const auto cleaned = pool::clean_pool(**memory);
  if (!cleaned) return report_failure("pool", cleaned.error().what());
  const auto name = [](const pool::ProcessLine& line) {
    return std::string(line.command, strnlen(line.command, sizeof line.command));
  };
  if (given.machine_readable) {
    json processes = json::array();
    for (const pool::ProcessLine& line : cleaned->processes)
      processes.push_back({{"pid", line.pid}, {"command", name(line)}});
    const json out{{"host", spec.host},
                   {"processes", processes},
                   {"freed_blocks", cleaned->blocks},
                   {"blocks", json_of(cleaned->left)}};
    fmt::print("{}\n", json_text(out, 2));
    return 0;
  }
  for (const pool::ProcessLine& line : cleaned->processes)
    fmt::print("freed the record of process {}[{}]\n", name(line), line.pid);
  if (cleaned->blocks > 0) fmt::print("freed {} blocks\n", cleaned->blocks);
  if (cleaned->processes.empty() && cleaned->blocks == 0)
    fmt::print("nothing to clean for host {} in {}\n", spec.host, spec.medium());
  if (cleaned->left.quarantined > 0)
    fmt::print("{} blocks stay in quarantine: another host may still write to them\n", cleaned->left.quarantined);
  return 0;
}

/// The other host of the check.
Result<uint16_t> peer_of(const PoolOptions& given, const pool::PoolMemory& memory) {
  const auto found = pool::look_at_pool(memory, 0);
  if (!found) return tl::unexpected(found.error());
  const uint32_t hosts = found->header.hosts;
  const uint16_t own = memory.spec().host;
  if (own >= hosts) return fail(EINVAL, "host=", own, ": the pool was formatted for hosts 0 to ", hosts - 1);
  if (given.with) {
    if (*given.with >= hosts || *given.with == own)
      return fail(EINVAL, "--with ", *given.with, ": expected another host from 0 to ", hosts - 1);
    return *given.with;
  }
  if (hosts != 2) return fail(EINVAL, "the pool has ", hosts, " hosts: name the other one by --with, or use --alone");
  return static_cast<uint16_t>(1 - own);
}

int check(const PoolOptions& given, const pool::Spec& spec) {
  const auto memory = pool::PoolMemory::open(spec);
  if (!memory) return report_failure("pool", memory.error().what());
  Result<uint16_t> peer = fail(0, "alone");
  if (!given.is_alone) {
    peer = peer_of(given, **memory);
    if (!peer) return report_failure("pool", peer.error().what());
  }
  const auto own = pool::measure_alone(spec, **memory);
  if (!own) return report_failure("pool", own.error().what());
  const char* const caches = pool::name_of((*memory)->caches());
  const bool is_flushed = (*memory)->caches() == pool::Caches::kFlushed;
  const char* const instructions = is_flushed ? pool::name_of(pool::line_instructions()) : "";
  json out{{"medium", spec.medium()},
           {"host", spec.host},
           {"caches", caches},
           {"load_ns", own->load_ns},
           {"store_ns", own->store_ns},
           {"line_to_the_medium_and_back_ns", own->flush_ns},
           {"to_bytes_per_second", own->to_bytes_per_s},
           {"from_bytes_per_second", own->from_bytes_per_s}};
  if (is_flushed) out["instructions"] = instructions;
  if (!given.machine_readable) {
    fmt::print("{}, host {}: {}{}{}\n", spec.medium(), spec.host, caches, is_flushed ? " by " : "", instructions);
    fmt::print("  8-byte load {:.1f} ns, 8-byte store {:.1f} ns, a line to the medium and back {:.1f} ns\n",
               own->load_ns, own->store_ns, own->flush_ns);
    fmt::print("  copies of 256 KiB: {:.1f} MB/s to the pool, {:.1f} MB/s from it\n", own->to_bytes_per_s / 1e6,
               own->from_bytes_per_s / 1e6);
    std::fflush(stdout);
  }
  int result = 0;
  std::optional<pool::PeerMeasurements> exchanged;
  if (!given.is_alone) {
    auto waiting = std::make_unique<Waiting>("nupa pool check on host " + std::to_string(*peer));
    const auto measured = pool::measure_with(**memory, *peer, static_cast<int64_t>(given.timeout_seconds * 1e9),
                                             [&] { waiting.reset(); });
    waiting.reset();
    if (!measured) return report_failure("pool", measured.error().what());
    exchanged = *measured;
    out["peer"] = {{"host", measured->host},
                   {"lines", measured->lines},
                   {"wrong_lines", measured->wrong_lines},
                   {"one_way_ns", measured->one_way_ns}};
    if (measured->wrong_lines > 0)
      result = report_failure(
          "pool", fmt::format("{} of {} lines that host {} wrote arrived with another content{}", measured->wrong_lines,
                              measured->lines, measured->host,
                              is_flushed ? "" : " (the caches of the hosts are not coherent: coherence=none)"));
    if (!given.machine_readable)
      fmt::print("  host {}: {} of {} lines are right, a line takes {:.0f} ns from host to host\n", measured->host,
                 measured->lines - measured->wrong_lines, measured->lines, measured->one_way_ns);
  }
  if (given.machine_readable) fmt::print("{}\n", json_text(out, 2));
  if (const auto recorded = pool::record_check(**memory, *own, exchanged ? &*exchanged : nullptr); !recorded)
    return report_failure("pool", recorded.error().what());
  return result;
}

}  // namespace

Subcommand add_pool(CLI::App& app) {
  auto options = std::make_shared<PoolOptions>();
  CLI::App* pool_command =
      app.add_subcommand("pool", "Memory that hosts share: PCIe BARs, CXL devices (docs/design/pool.md)");
  pool_command->require_subcommand(1);
  const CLI::Validator is_spec(
      [](const std::string& text) -> std::string {
        const auto spec = pool::parse_spec(text, "");
        return spec ? "" : spec.error().what();
      },
      "POOL");
  const auto add = [&](const char* name, const char* description) {
    CLI::App* const command = pool_command->add_subcommand(name, description);
    command
        ->add_option("--pool", options->pool,
                     "The pool and this host's number, such as /dev/dax0.0,host=1 (default $NUPA_POOL, or "
                     "/etc/nupa/pool.json)")
        ->check(is_spec);
    command->add_flag("--json", options->machine_readable, "Print JSON");
    return command;
  };
  CLI::App* const format_command = add("format", "Make a pool in the medium, which loses its content");
  format_command->add_option("--hosts", options->format.hosts, "Number of hosts")
      ->check(number_between(1u, pool::kMaxHosts))
      ->capture_default_str();
  format_command->add_option("--size", options->size, "Make a file of this size (only for file:PATH)")
      ->check(is_size(1 << 20, pool::kMostPoolBytes, false));
  format_command->add_option("--ring-size", options->ring_size, "Size of each ring (default: by the size of the pool)")
      ->check(
          is_size(pool::kLeastRingLines * pool::kLineBytes, uint64_t{pool::kMostRingLines} * pool::kLineBytes, true));
  format_command->add_flag("--force", options->format.force, "Also if a process uses the pool");
  CLI::App* const check_command =
      add("check", "Measure the pool, and exchange lines with the same command on another host");
  auto* const with =
      check_command->add_option("--with", options->with, "The other host (default: the other one of two)")
          ->check(number_between(0u, pool::kMaxHosts - 1));
  auto* const timeout =
      check_command->add_option("--timeout", options->timeout_seconds, "Seconds to wait for the other host")
          ->check(number_between(0.0, kLongestSeconds, "seconds"))
          ->capture_default_str();
  check_command->add_flag("--alone", options->is_alone, "Only this host's measurements")->excludes(with, timeout);
  check_command->footer("The exit status is 1 if the medium drops writes, or lines do not arrive.");
  CLI::App* const status_command = add("status", "Show the hosts, processes and blocks of the pool");
  CLI::App* const clean_command = add("clean", "Free what dead processes of this host left in the pool");
  return {pool_command, [=] {
            const auto spec = spec_of(*options);
            if (!spec) return report_failure("pool", spec.error().what());
            if (*format_command) return format(*options, *spec);
            if (*check_command) return check(*options, *spec);
            if (*status_command) return status(*options, *spec);
            if (*clean_command) return clean_pool(*options, *spec);
            return 2;
          }};
}

}  // namespace nupa::cli
