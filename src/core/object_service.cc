// SPDX-License-Identifier: Apache-2.0
#include "core/object_service.h"

#include <algorithm>
#include <span>
#include <unordered_set>

#include "base/clock.h"
#include "core/cq.h"
#include "core/qp.h"
#include "core/srq.h"

namespace nupa::core {

namespace {

constexpr int64_t kBusyPauseNs = 100'000;

/// Clears the bits that are set in `words` and calls `visit(number of the bit)` for each.
template <class Visit>
void take_bits(std::span<std::atomic<uint64_t>> words, Visit&& visit) {
  for (uint32_t word = 0; word < words.size(); ++word) {
    if (words[word].load() == 0) continue;  // most words are 0
    for (uint64_t bits = words[word].exchange(0); bits != 0; bits &= bits - 1)
      visit(word * 64 + static_cast<uint32_t>(__builtin_ctzll(bits)));
  }
}

}  // namespace

void ObjectService::look_at(uint32_t bank) {
  const shm::QpBank tables = node_.self().queue_pairs().at(bank);
  if (!tables) return;  // a peer set the bit of a bank that this process does not have
  take_bits(std::span(tables.attention, shm::kSlotQp / 64), [&](uint32_t place) {
    const uint32_t index = shm::number_of(bank, place);
    Qp* qp = objects_.qps().at(index);
    if (qp == nullptr) return;
    if (tables.qp[place].wake.exchange(0) != 0) again_.set_at_latest(qp->progress(base::now_ns()));
    qp->report_established();
    if (!qp->handle_error()) failed_.insert(index);
  });
}

void ObjectService::on_attention(uint32_t kinds) {
  shm::SegmentHeader& header = *tables().header;
  std::lock_guard lock(objects_.mutex());
  if ((kinds & shm::attention::kQp) != 0) {
    constexpr uint32_t kBanks = (1u << shm::kMaxBanks) - 1;
    for (uint32_t banks = header.bank_attention.exchange(0) & kBanks; banks != 0; banks &= banks - 1)
      look_at(static_cast<uint32_t>(__builtin_ctz(banks)));
    if (!failed_.empty()) wake();
  }
  if ((kinds & shm::attention::kSrq) != 0) {
    take_bits(header.srq_attention, [&](uint32_t index) {
      if (Srq* srq = objects_.srqs().at(index); srq != nullptr) srq->on_limit();
    });
  }
  if ((kinds & shm::attention::kCq) != 0) {
    take_bits(header.cq_attention, [&](uint32_t index) {
      Cq* cq = objects_.cqs().at(index);
      if (cq == nullptr) return;
      if (tables().cq[index].overrun.load() == 1) {
        tables().cq[index].overrun.store(2);  // reported once
        cq->on_overrun();
      }
      cq->wake_channel();
    });
  }
}

void ObjectService::recover_from(host::Peer& peer) {
  const uint32_t dead = shm::owner_tag(peer.slot(), peer.instance());
  const auto completed = [this](uint32_t qp_index, uint64_t intent) {
    const Qp* const qp = objects_.qps().at(qp_index);
    return qp != nullptr && qp->recv_cq()->completed(intent);
  };
  for (uint32_t i = 0; i < objects_.srqs().high_water(); ++i)
    if (Srq* srq = objects_.srqs().at(i); srq != nullptr) srq->recover(dead, completed);
  objects_.qps().each([dead](Qp& qp) { qp.recover(dead); });
}

bool ObjectService::leave(Qp& qp, host::Peer& gone) {
  const bool left = qp.handle_peer_exit(gone);
  if (qp.has_failed()) failed_.insert(qp.index());
  return left;
}

void ObjectService::on_peer_exit(host::Peer& peer) {
  std::lock_guard lock(objects_.mutex());
  recover_from(peer);
  objects_.qps().each([&](Qp& qp) {
    if (!leave(qp, peer)) leaving_.push_back({qp.index(), peer.shared_from_this()});
  });
  const uint32_t dead = shm::owner_tag(peer.slot(), peer.instance());
  std::unordered_set<Channel*> channels;
  for (uint32_t i = 0; i < objects_.cqs().high_water(); ++i) {
    Cq* const cq = objects_.cqs().at(i);
    if (cq == nullptr) continue;
    cq->recover(dead);
    if (cq->event_channel() != nullptr) channels.insert(cq->event_channel());
  }
  for (Channel* channel : channels) channel->recover();
  if (!failed_.empty() || !leaving_.empty()) wake();
}

void ObjectService::in_child() {
  // The tables only hold complete objects: they enter at the end of their construction and leave before their
  // destruction.
  for (uint32_t i = 0; i < objects_.cqs().high_water(); ++i)
    if (Cq* const cq = objects_.cqs().at(i); cq != nullptr) cq->abandon();
  objects_.qps().each([](Qp& qp) { qp.abandon(); });
}

void ObjectService::try_again(int64_t now_ns) {
  std::shared_lock copies(copies_);
  std::lock_guard lock(objects_.mutex());
  tries_ = true;
  std::erase_if(leaving_, [this](const Leaving& each) {
    Qp* const qp = objects_.qps().at(each.index);
    return qp == nullptr || leave(*qp, *each.gone);
  });
  int64_t wanted = leaving_.empty() ? INT64_MAX : now_ns + kBusyPauseNs;
  for (auto failed = failed_.begin(); failed != failed_.end();) {
    Qp* qp = objects_.qps().at(*failed);
    if (qp == nullptr || qp->handle_error()) {
      failed = failed_.erase(failed);
    } else {
      wanted = now_ns + kBusyPauseNs;
      ++failed;
    }
  }
  again_.set_at_latest(std::min(wanted, pending_.progress(now_ns)));
  tries_ = false;
}

std::unique_ptr<ObjectEvents> make_object_events(host::Node& node, ObjectTables& objects,
                                                 PendingRequests<Qp, CompletionSink>& pending,
                                                 std::shared_mutex& copies) {
  return std::make_unique<ObjectService>(node, objects, pending, copies);
}

}  // namespace nupa::core
