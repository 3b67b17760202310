// SPDX-License-Identifier: Apache-2.0
#include "core/transports.h"

#include <algorithm>
#include <cerrno>

#include "core/datagram_router.h"
#include "core/transport_names.h"

namespace nupa::core {

namespace {

bool serves(const Transport& transport, const DeviceEntry& device) {
  return device.owner.empty() || device.owner == transport.name() || transport.shares_memory();
}

}  // namespace

Result<Transports> Transports::from_environment() {
  const auto places = chosen_transports();
  if (!places) return tl::unexpected(places.error());
  Transports transports;
  const auto entries = transport_entries();
  for (size_t i = 0; i < entries.size(); ++i) {
    auto made = entries[i].create();
    if (!made) return tl::unexpected(made.error());
    if (std::find(places->begin(), places->end(), i) != places->end()) transports.used_.push_back({std::move(*made)});
  }
  return transports;
}

void Transports::describe(shm::SegmentHeader& header) const {
  for (const Used& each : used_) each.transport->describe(header);
}

bool Transports::reserve(uint32_t slot) {
  bool any = false;
  for (Used& each : used_) {
    const Transport::Slot answer = each.transport->reserve(slot);
    if (answer == Transport::Slot::kTaken) return false;
    each.is_able = answer == Transport::Slot::kFine;
    any = any || each.is_able;
  }
  return any;
}

Result<bool> Transports::reserve_further(uint32_t slot) {
  for (const Used& each : used_)
    if (auto reserved = each.transport->reserve_further(slot); !reserved || !*reserved) return reserved;
  return true;
}

void Transports::extend(uint32_t slot) {
  for (const Used& each : used_) each.transport->extend(slot);
}

Error Transports::explain_no_slot(const Error& error) const {
  // A transport that cannot run is no reason while another one can.
  const bool any = std::any_of(used_.begin(), used_.end(), [](const Used& each) { return each.is_able; });
  for (const Used& each : used_) {
    if (any && !each.is_able) continue;
    if (const auto why = each.transport->explain_no_slot(); !why) return why.error();
  }
  return error;
}

Result<void> Transports::open(ProcessContext& process) {
  std::erase_if(used_, [](const Used& each) { return !each.is_able; });
  for (const Used& each : used_) {
    if (auto opened = each.transport->open(process); !opened) return opened;
    if (progress::Poller* poller = each.transport->poller(); poller != nullptr) pollers_.push_back(poller);
  }
  std::vector<MadCarrier*> carriers;
  for (const Used& each : used_)
    if (MadCarrier* mads = each.transport->mads(); mads != nullptr) carriers.push_back(mads);
  if (carriers.size() > 1) mad_router_ = std::make_unique<MadRouter>(carriers);
  mads_ = carriers.empty() ? nullptr : mad_router_ != nullptr ? mad_router_.get() : carriers.front();
  return {};
}

Result<std::unique_ptr<Endpoint>> Transports::connect(const DeviceEntry& device, QpContext& context,
                                                      const QpAttr& attr) {
  if (attr.av.is_global && attr.av.sgid_index >= device.gids.size())
    return fail(EHOSTUNREACH, device.name, ": source GID ", attr.av.sgid_index, " is empty");
  std::vector<Transport*> serving;
  for (const Used& each : used_)
    if (serves(*each.transport, device)) serving.push_back(each.transport.get());
  const auto reaches = [&](Transport* each) {
    return each == serving.back() || each->reaches(attr.av, attr.dest_qp_num);
  };
  Transport* const chosen = *std::find_if(serving.begin(), serving.end(), reaches);
  return chosen->connect(device, context, attr, used_.size() > 1);
}

Result<std::unique_ptr<Endpoint>> Transports::datagrams(const DeviceEntry& device, QpContext& context) {
  auto router = std::make_unique<DatagramRouter>(context, used_.front().transport->name());
  for (const Used& each : used_) {
    if (!serves(*each.transport, device)) continue;
    auto sender = each.transport->datagrams(device, context, router->due);
    if (!sender) return tl::unexpected(sender.error());
    router->add(std::move(*sender));
    if (!each.transport->records_packets()) router->record_last(device, each.transport->name());
  }
  return router;
}

int Transports::join(const DeviceEntry& device, uint32_t qp_num, const Gid& group) {
  int first_error = 0;
  bool joined = false;
  for (const Used& each : used_) {
    if (!serves(*each.transport, device)) continue;
    const int error = each.transport->join(device, qp_num, group);
    joined = joined || error == 0;
    if (first_error == 0) first_error = error;
  }
  return joined ? 0 : first_error;
}

void Transports::leave(uint32_t qp_num, const Gid& group) {
  for (const Used& each : used_) each.transport->leave(qp_num, group);
}

Result<Mtu> Transports::mtu(const DeviceEntry& device) const {
  Mtu largest{};
  for (const Used& each : used_) {
    if (!serves(*each.transport, device)) continue;
    const auto mtu = each.transport->mtu(device);
    if (!mtu) {
      if (used_.size() == 1) return mtu;
      continue;
    }
    largest = std::max(largest, *mtu);
  }
  return largest;
}

Result<std::optional<Mtu>> Transports::mtu_to(const Gid& host, uint32_t scope) const {
  std::optional<Mtu> smallest;
  for (const Used& each : used_) {
    const auto way = each.transport->mtu_to(host, scope);
    if (!way) return way;
    if (*way) smallest = std::min(smallest.value_or(**way), **way);
  }
  return smallest;
}

std::optional<Gid> Transports::source_to(const Gid& host) const {
  for (const Used& each : used_)
    if (const auto source = each.transport->source_to(host)) return source;
  return std::nullopt;
}

bool Transports::cover_network_beside(const Transport& asking, const DeviceEntry& device) const {
  return std::any_of(used_.begin(), used_.end(), [&](const Used& each) {
    return each.transport.get() != &asking && each.transport->mads() != nullptr && serves(*each.transport, device);
  });
}

bool Transports::share_memory() const {
  return std::any_of(used_.begin(), used_.end(), [](const Used& each) { return each.transport->shares_memory(); });
}

bool Transports::share_memory_beside(const Transport& asking) const {
  return std::any_of(used_.begin(), used_.end(), [&](const Used& each) {
    return each.transport.get() != &asking && each.transport->shares_memory();
  });
}

MadCarrier* Transports::mads() const { return mads_; }

void Transports::revoked(uint32_t rkey) const {
  for (const Used& each : used_) each.transport->revoked(rkey);
}

TransportMemory* Transports::memory(const DeviceEntry& device) const {
  Transport* const owner = device.owner.empty() ? nullptr : find(device.owner);
  return owner == nullptr ? nullptr : owner->memory();
}

TransportMemory* Transports::lender() const {
  for (const Used& each : used_)
    if (TransportMemory* const memory = each.transport->memory(); memory != nullptr && memory->saves_copies())
      return memory;
  return nullptr;
}

std::shared_ptr<std::byte> Transports::borrow(const TransportMemory::Place& place, uint64_t bytes) const {
  for (const Used& each : used_)
    if (TransportMemory* const memory = each.transport->memory(); memory != nullptr)
      if (auto borrowed = memory->borrow(place, bytes); borrowed != nullptr) return borrowed;
  return nullptr;
}

Transport* Transports::find(std::string_view name) const {
  for (const Used& each : used_)
    if (each.transport->name() == name) return each.transport.get();
  return nullptr;
}

}  // namespace nupa::core
