// SPDX-License-Identifier: Apache-2.0
#include "core/object_service.h"

#include <algorithm>
#include <iterator>

#include "base/clock.h"
#include "core/cq.h"
#include "core/qp.h"
#include "core/srq.h"
#include "progress/waiter.h"

namespace nupa::core {

namespace {

constexpr int64_t kBusyPauseNs = 100'000;

}  // namespace

void ObjectService::on_attention(uint32_t kinds) {
  segment::SegmentHeader& header = *tables().header;
  std::lock_guard lock(objects_.mutex());
  const auto each = [](auto& words, auto&& visit) {
    for (uint32_t word = 0; word < std::size(words); ++word) {
      if (words[word].load() == 0) continue;  // most are
      for (uint64_t bits = words[word].exchange(0); bits != 0; bits &= bits - 1)
        visit(word * 64 + static_cast<uint32_t>(__builtin_ctzll(bits)));
    }
  };
  if ((kinds & segment::attention::kQp) != 0) {
    each(header.qp_attention, [&](uint32_t index) {
      Qp* qp = objects_.qps().at(index);
      if (qp == nullptr) return;
      if (tables().qp[index].wake.exchange(0) != 0) again_.set_at_latest(qp->progress(base::now_ns()));
      qp->tell_established();
      if (!qp->handle_error()) failed_.insert(index);
    });
    if (!failed_.empty()) wake();
  }
  if ((kinds & segment::attention::kSrq) != 0) {
    each(header.srq_attention, [&](uint32_t index) {
      if (Srq* srq = objects_.srqs().at(index); srq != nullptr) srq->on_limit();
    });
  }
  if ((kinds & segment::attention::kCq) != 0) {
    each(header.cq_attention, [&](uint32_t index) {
      Cq* cq = objects_.cqs().at(index);
      if (cq == nullptr) return;
      if (tables().cq[index].overrun.load() == 1) {
        tables().cq[index].overrun.store(2);  // told once
        cq->on_overrun();
      }
      cq->wake_channel();
    });
  }
}

void ObjectService::recover_from(cm::Peer& peer) {
  const uint32_t dead = segment::owner_tag(peer.slot(), peer.instance());
  for (uint32_t i = 0; i < objects_.srqs().high_water(); ++i)
    if (Srq* srq = objects_.srqs().at(i); srq != nullptr) srq->recover(dead);
  const uint32_t qp_count = tables().header->qp_high_water.load();
  for (uint32_t i = 0; i < qp_count; ++i)
    if (Qp* qp = objects_.qps().at(i); qp != nullptr) qp->recover(dead);
}

void ObjectService::on_peer_gone(cm::Peer& peer) {
  std::lock_guard lock(objects_.mutex());
  recover_from(peer);
  const uint32_t qp_count = tables().header->qp_high_water.load();
  for (uint32_t i = 0; i < qp_count; ++i) {
    Qp* qp = objects_.qps().at(i);
    if (qp == nullptr) continue;
    // A thread that is inside a post to the dead peer comes out of it: nobody can hold it up any more.
    progress::Waiter waiter(progress::kLockPolicy);
    for (int turn = 0; turn < 100000 && !qp->handle_peer_gone(peer); ++turn) waiter.turn();
    if (tables().qp[i].error.load() != 0 || segment::state_of(tables().qp[i].state.load()) == QpState::kErr)
      failed_.insert(i);
  }
  const uint32_t dead = segment::owner_tag(peer.slot(), peer.instance());
  for (uint32_t i = 0; i < objects_.cqs().high_water(); ++i)
    if (Cq* cq = objects_.cqs().at(i); cq != nullptr) cq->recover(dead);
  if (!failed_.empty()) wake();
}

void ObjectService::try_again(int64_t now_ns) {
  std::shared_lock copies(copies_);
  std::lock_guard lock(objects_.mutex());
  tries_ = true;
  int64_t wanted = INT64_MAX;
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

}  // namespace nupa::core
