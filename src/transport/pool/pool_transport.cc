// SPDX-License-Identifier: Apache-2.0
#include "transport/pool/pool_transport.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/gid.h"
#include "base/gid_text.h"
#include "base/log.h"
#include "transport/pool/endpoint.h"
#include "transport/pool/mads.h"

namespace nupa::pool {
namespace {

/// True if another host can have the same address for itself.
bool is_of_link(const Gid& gid) {
  constexpr uint8_t kLoopbackNet = 127;
  static constexpr Gid kLoopback{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};
  return base::is_link_local(gid) || gid == kLoopback || (base::is_ipv4(gid) && gid.raw[12] == kLoopbackNet);
}

}  // namespace

bool PoolTransport::is_taken(uint32_t slot) {
  // A slot is a part of queue pair numbers. Only the slot distinguishes two processes of one host.
  return pool_->find(pool_->gid_of(pool_->host()), slot).has_value();
}

core::Transport::Slot PoolTransport::reserve(uint32_t slot) {
  if (pool_ == nullptr && !error_) {
    auto opened = open_pool_();
    if (opened)
      pool_ = std::move(*opened);
    else
      error_ = opened.error();
    if (error_ && error_->code() != kNoPool) NUPA_WARN("the pool transport is not used: %s", error_->what());
  }
  if (pool_ == nullptr) return Slot::kUnable;
  return is_taken(slot) ? Slot::kTaken : Slot::kFine;
}

Result<void> PoolTransport::explain_no_slot() const {
  if (error_) return tl::unexpected(*error_);
  return {};
}

Result<void> PoolTransport::open(core::ProcessContext& process) {
  process_ = &process;
  const shm::SegmentHeader& header = *process.node().segment().tables().header;
  Description description;
  description.slots.push_back(process.node().slot());
  const Gid own = pool_->gid_of(pool_->host());
  description.gids.push_back(own);
  std::vector<Gid> addresses = process.host_addresses();
  for (uint32_t i = 0; i < std::min(header.device_count, shm::kMaxDevices); ++i) {
    const shm::GidTableShared& table = header.devices[i];
    addresses.insert(addresses.end(), table.gids, table.gids + std::min(table.count, shm::kMaxGids));
  }
  for (const Gid& gid : addresses)
    if (!is_of_link(gid) && std::find(description.gids.begin(), description.gids.end(), gid) == description.gids.end())
      description.gids.push_back(gid);
  auto engine = Engine::open(*pool_, std::move(description));
  if (!engine) return tl::unexpected(engine.error());
  engine_ = std::move(*engine);
  engine_->set_own_addresses(std::move(addresses));
  memory_.emplace(*engine_);
  process.count_thread(true);
  return engine_->start();
}

Result<bool> PoolTransport::reserve_further(uint32_t slot) { return !is_taken(slot); }

void PoolTransport::extend(uint32_t slot) {
  const auto published = engine_->describe([slot](Description& mine) { mine.slots.push_back(slot); });
  if (!published) NUPA_WARN("pool: cannot publish slot %u: %s", slot, published.error().what());
}

bool PoolTransport::reaches(const AddressVector& vector, uint32_t qp_num) {
  return engine_->process_of(vector, qp_num).has_value();
}

Result<std::unique_ptr<core::Endpoint>> PoolTransport::connect(const core::DeviceEntry&, core::QpContext& context,
                                                               const QpAttr& attr, bool) {
  // Without a process at that address the queue pair waits for one (IBTA 11.2.4.2: the transition does not communicate
  // with the peer).
  return std::make_unique<ConnectedEndpoint>(*engine_, context, attr, engine_->claim_link(attr.av, attr.dest_qp_num));
}

GroupReach PoolTransport::group_reach(const core::DeviceEntry& device) const {
  if (process_->network_is_covered(*this, device)) return GroupReach::kNone;
  return process_->host_is_covered(*this) ? GroupReach::kOtherHosts : GroupReach::kAll;
}

Result<std::unique_ptr<core::DatagramSender>> PoolTransport::datagrams(const core::DeviceEntry& device,
                                                                       core::QpContext& context, host::DueEvent&) {
  return std::make_unique<DatagramEndpoint>(*engine_, context, device.gids, group_reach(device));
}

Result<void> PoolTransport::publish_groups() {
  return engine_->describe([this](Description& mine) {
    mine.groups.clear();
    for (const Member& member : members_)
      if (member.published && std::find(mine.groups.begin(), mine.groups.end(), member.group) == mine.groups.end())
        mine.groups.push_back(member.group);
  });
}

int PoolTransport::join(const core::DeviceEntry& device, uint32_t qp_num, const Gid& group) {
  if (group_reach(device) == GroupReach::kNone) return 0;
  std::lock_guard lock(groups_mutex_);
  members_.push_back({qp_num, group, true});
  const auto published = publish_groups();
  if (!published) {
    members_.pop_back();
    return published.error().code();
  }
  engine_->join(qp_num, group);
  return 0;
}

void PoolTransport::leave(uint32_t qp_num, const Gid& group) {
  engine_->leave(qp_num, group);
  std::lock_guard lock(groups_mutex_);
  std::erase_if(members_, [&](const Member& member) { return member.qp_num == qp_num && member.group == group; });
  [[maybe_unused]] const auto published = publish_groups();
}

std::optional<Gid> PoolTransport::source_to(const Gid& host) const {
  for (uint16_t number = 0; number < pool_->hosts(); ++number)
    if (pool_->gid_of(number) == host) return pool_->gid_of(pool_->host());
  return std::nullopt;
}

Result<void> PoolTransport::listen(core::MadHandler handler) {
  engine_->set_mad_handler(std::move(handler));
  return engine_->describe([](Description& mine) { mine.receives_for_host = true; });
}

void PoolTransport::unlisten() {
  engine_->set_mad_handler(nullptr);
  [[maybe_unused]] const auto published = engine_->describe([](Description& mine) { mine.receives_for_host = false; });
}

bool PoolTransport::send(const core::MadDatagram& datagram) {
  const auto process = engine_->mad_process(datagram.remote);
  return process && engine_->send_mad(*process, datagram, false);
}

core::HostWay PoolTransport::way_to_host(const core::DeviceEntry&, uint32_t, const Gid& address) const {
  const auto process = engine_->receiver_for_host(address);
  return {process ? Engine::mad_port_of(*process) : uint16_t{0}, core::kPoolInterface};
}

bool PoolTransport::leads_to(const Gid& address) const {
  return engine_->is_own(address) || !pool_->find_all(address).empty() || source_to(address).has_value();
}

Result<std::unique_ptr<core::MadSocket>> PoolTransport::open_host_socket() {
  return fail(EADDRINUSE, "this process receives the datagrams of the host");
}

Result<std::unique_ptr<core::MadSocket>> PoolTransport::open_probe_socket() { return ProbeSocket::open(*engine_); }

}  // namespace nupa::pool
