// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "core/device_table.h"
#include "core/transports.h"
#include "cli/observe.h"
#include "cli/prometheus.h"
#include "json/json.h"
#include "progress/waiter.h"
#include "cli/transport_alias.h"
#include "cli/waiting.h"

namespace nupa::cli {
namespace {

const char* name_of(QpType type) {
  switch (type) {
    case QpType::kRc:
      return "RC";
    case QpType::kUc:
      return "UC";
    case QpType::kUd:
      return "UD";
    case QpType::kXrcSend:
      return "XRC_SEND";
    case QpType::kXrcRecv:
      return "XRC_RECV";
  }
  return "?";
}

const char* name_of(QpState state) {
  static constexpr const char* kNames[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
  return static_cast<uint32_t>(state) < std::size(kNames) ? kNames[static_cast<uint32_t>(state)] : "?";
}

nlohmann::json json_of(const core::StatFields& fields);

nlohmann::json json_of(const core::StatValue& value) {
  return std::visit(
      [](const auto& held) -> nlohmann::json {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, std::monostate>) {
          return nullptr;
        } else if constexpr (std::is_same_v<Held, core::StatFields>) {
          return json_of(held);
        } else if constexpr (std::is_same_v<Held, core::StatList>) {
          nlohmann::json list = nlohmann::json::array();
          for (const core::StatValue& each : held) list.push_back(json_of(each));
          return list;
        } else {
          return held;
        }
      },
      value.value);
}

nlohmann::json json_of(const core::StatFields& fields) {
  nlohmann::json object = nlohmann::json::object();
  for (const auto& [name, value] : fields) object[name] = json_of(value);
  return object;
}

/// Returns what a queue pair's transport has recorded about it, or nothing if this program does not have that
/// transport.
core::Explanation explain(const shm::QpShared& qp, const shm::StatisticsShared& block) {
  const uint64_t name = qp.transport.load();
  if (name != block.transport.load()) return {};
  for (const core::TransportEntry& entry : core::transport_entries())
    if (entry.explain != nullptr && shm::pack_name(entry.name) == name)
      return entry.explain(static_cast<QpType>(qp.type.load()), block);
  return {};
}

nlohmann::json row_of(const shm::SegmentHeader& header, const shm::QpShared& qp, const shm::StatisticsShared& block,
                      const std::map<uint32_t, std::string>& names, const std::vector<core::DeviceEntry>& devices) {
  const uint32_t peer = qp.remote_slot.load();
  const auto type = static_cast<QpType>(qp.type.load());
  const bool connected = type != QpType::kUd && peer != 0;
  const auto known = names.find(peer);
  std::string other = !connected ? "" : known != names.end() ? known->second : "gone";
  const core::Explanation told = explain(qp, block);
  if (!told.peer.empty()) other = told.peer;
  nlohmann::json row = {{"pid", header.pid},
                        {"command", header.command},
                        {"slot", header.slot},
                        {"device", core::device_name_at(devices, qp.device.load())},
                        {"qp_num", qp.qp_num.load()},
                        {"type", name_of(type)},
                        {"state", name_of(shm::state_of(qp.state.load()))},
                        {"transport", shm::unpack_name(qp.transport.load())},
                        {"peer_qp_num", qp.remote_qpn.load()},
                        {"peer", other},
                        {"messages", qp.counters.messages.load()},
                        {"bytes", qp.counters.bytes.load()},
                        {"received", qp.received.load()},
                        {"errors", qp.counters.errors.load()},
                        {"rnr", qp.counters.rnr.load()}};
  add_transport_alias(&row);
  row.update(json_of(told.fields));
  return row;
}

}  // namespace

host::Observation observe_all(host::RuntimeDir& dir) {
  constexpr int kTimeoutMs = 500;
  const Waiting waiting("answers of the processes in " + dir.path());
  return host::observe_all(dir, kTimeoutMs);
}

nlohmann::json rows_of(const std::vector<host::Observed>& processes) {
  const auto read = core::read_devices();
  const std::vector<core::DeviceEntry> devices = read ? *read : std::vector<core::DeviceEntry>{};
  std::map<uint32_t, std::string> names;
  for (const host::Observed& observed : processes) {
    const shm::SegmentHeader& header = *observed.process.tables.header;
    const std::string name = fmt::format("{}[{}]", header.command, header.pid);
    names[header.slot] = name;
    for (const shm::BankPlace& place : header.further_banks)
      if (const uint32_t slot = place.slot.load(); slot != 0) names[slot] = name;
  }
  nlohmann::json rows = nlohmann::json::array();
  for (const host::Observed& observed : processes) {
    const shm::Tables& tables = observed.process.tables;
    shm::QpBanks banks;
    banks.open(observed.process.file.get(), tables, tables.header->slot);
    banks.each([&](const shm::QpBank& bank, uint32_t) {
      const uint32_t count = bank.count();
      for (uint32_t i = 0; i < count; ++i)
        if (bank.qp[i].in_use.load() != 0)
          rows.push_back(row_of(*tables.header, bank.qp[i], bank.statistics[i], names, devices));
    });
  }
  return rows;
}

namespace {

void print(const nlohmann::json& rows) {
  fmt::print("{:<22} {:<6} {:>8} {:<8} {:<5} {:<9} {:<22} {:>12} {:>16} {:>12} {:>7} {:>7}\n", "PROCESS", "DEVICE",
             "QP", "TYPE", "STATE", "TRANSPORT", "PEER", "MESSAGES", "BYTES", "RECEIVED", "ERRORS", "RNR");
  for (const auto& row : rows) {
    fmt::print("{:<22} {:<6} {:#08x} {:<8} {:<5} {:<9} {:<22} {:>12} {:>16} {:>12} {:>7} {:>7}\n",
               fmt::format("{}[{}]", row["command"].get<std::string>(), row["pid"].get<int>()),
               row["device"].get<std::string>(), row["qp_num"].get<uint32_t>(), row["type"].get<std::string>(),
               row["state"].get<std::string>(), row["transport"].get<std::string>(), row["peer"].get<std::string>(),
               row["messages"].get<uint64_t>(), row["bytes"].get<uint64_t>(), row["received"].get<uint64_t>(),
               row["errors"].get<uint64_t>(), row["rnr"].get<uint64_t>());
  }
}

}  // namespace

int stat(const StatOptions& options) {
  auto dir = host::RuntimeDir::open();
  if (!dir) {
    fmt::print(stderr, "nupa: {}\n", dir.error().what());
    return 1;
  }
  for (;;) {
    const host::Observation seen = observe_all(**dir);
    const nlohmann::json rows = rows_of(seen.processes);
    if (!options.output.empty()) {
      if (const int error = replace_file(options.output, prometheus_text(rows)); error != 0) {
        fmt::print(stderr, "nupa: {}: {}\n", options.output, std::strerror(error));
        return 1;
      }
    } else if (options.prometheus) {
      fmt::print("{}", prometheus_text(rows));
    } else if (options.json) {
      fmt::print("{}\n", json_text(rows, 2));
    } else {
      print(rows);
    }
    for (const uint32_t slot : seen.silent)
      fmt::print(stderr, "nupa: the process of {}/{}.sock does not answer (it may be stopped)\n", (*dir)->path(), slot);
    if (options.watch_seconds <= 0) return 0;
    std::fflush(stdout);
    progress::sleep_for(static_cast<int64_t>(options.watch_seconds * progress::kNsPerSecond));
  }
}

namespace {

/// Removes the files that processes share, unless a process of the folder lives: it may use them. `dead`: sockets of
/// dead processes that are still there. Returns the names of the removed files.
std::vector<std::string> remove_shared(const host::RuntimeDir& dir, size_t dead, bool only_look) {
  if (dir.list().size() + dir.names().size() > dead) return {};
  const std::vector<std::string> shared = dir.shared();
  std::error_code ignored;  // a file that cannot be removed stays for the next call
  if (!only_look)
    for (const std::string& name : shared) std::filesystem::remove_all(dir.path() + "/" + name, ignored);
  return shared;
}

}  // namespace

int clean(bool dry_run, bool json) {
  auto dir = host::RuntimeDir::open();
  const Result<void> free = dir ? (*dir)->wait_until_free() : tl::unexpected(dir.error());
  if (!free) {
    fmt::print(stderr, "nupa: {}\n", free.error().what());
    return 1;
  }
  const auto dead = (*dir)->sweep(dry_run);
  const auto dead_names = (*dir)->sweep_names(dry_run);
  const auto shared = remove_shared(**dir, dry_run ? dead.size() + dead_names.size() : 0, dry_run);
  if (json) {
    nlohmann::json files = nlohmann::json::array();
    for (const uint32_t slot : dead) files.push_back(fmt::format("{}/{}.sock", (*dir)->path(), slot));
    for (const std::string& name : dead_names) files.push_back(fmt::format("{}/{}.name", (*dir)->path(), name));
    for (const std::string& name : shared) files.push_back((*dir)->path() + "/" + name);
    const nlohmann::json out{
        {"directory", (*dir)->path()}, {"files", files}, {"removed", !dry_run}, {"skipped", (*dir)->foreign_entries()}};
    fmt::print("{}\n", json_text(out, 2));
    return 0;
  }
  for (const uint32_t slot : dead)
    fmt::print("{} {}/{}.sock\n", dry_run ? "would remove" : "removed", (*dir)->path(), slot);
  for (const std::string& name : dead_names)
    fmt::print("{} {}/{}.name\n", dry_run ? "would remove" : "removed", (*dir)->path(), name);
  for (const std::string& name : shared)
    fmt::print("{} {}/{}\n", dry_run ? "would remove" : "removed", (*dir)->path(), name);
  if (dead.empty() && dead_names.empty() && shared.empty()) fmt::print("nothing to clean in {}\n", (*dir)->path());
  for (const std::string& name : (*dir)->foreign_entries())
    fmt::print("skipped: {}/{} (not a file of NUPA)\n", (*dir)->path(), name);
  return 0;
}

}  // namespace nupa::cli
