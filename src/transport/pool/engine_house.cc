// SPDX-License-Identifier: Apache-2.0
/// Housekeeping of the engine: lives of the peers, links that are wanted or lost, bells, memory that is given back.
#include <algorithm>
#include <utility>

#include "transport/pool/engine.h"

namespace nupa::pool {

void Engine::seek_links(Hold& hold, int64_t now) {
  std::vector<Receiver*> seekers;
  {
    std::lock_guard lock(due_mutex_);
    seekers = seekers_;
  }
  for (Receiver* const receiver : seekers) {
    hold.release();
    auto link = receiver->resolve();
    if (hold.take(*receiver)) receiver->resolved(std::move(link), now);
  }
  if (seekers.empty()) return;
  std::lock_guard lock(due_mutex_);
  std::erase_if(seekers_, [](const Receiver* receiver) { return !receiver->seeks_link(); });
}

template <class Visit>
void Engine::each_receiver(Visit&& visit) const {
  banks_.each([&](const Bank& bank) {
    for (const auto& place : bank.receivers)
      if (Receiver* const receiver = place.load(std::memory_order_acquire); receiver != nullptr) visit(*receiver);
  });
}

bool Engine::fail_link(const std::shared_ptr<Link>& link, Hold& hold, bool garbage, int64_t now) {
  bool all = true;
  each_receiver([&](Receiver& receiver) {
    if (receiver.link() != link) return;
    if (hold.take(receiver))
      receiver.peer_failed(*link, garbage, now);
    else
      all = false;
  });
  return all;
}

/// Records that the peer wrote before its end count. The last look may have come before them.
void Engine::note_end(Link& link) {
  if (link.has_ended && link.is_drained) link.lose();
  link.has_ended = true;
}

void Engine::look_at_lives(Hold& hold, int64_t now) {
  for (const auto& link : links_) {
    if (link->is_lost() || link->peer() == self_) continue;
    switch (pool_.life(link->peer())) {
      case Life::kAlive:
        if (std::exchange(link->is_silent, false)) grants_.revive(link->peer());
        if (link->channel().is_closed()) note_end(*link);
        if (now - link->made_ns >= kOpeningNs && !link->channel().is_open())
          each_receiver([&](Receiver& receiver) {
            if (receiver.link() == link && hold.take(receiver)) receiver.not_answered(*link, now);
          });
        break;
      case Life::kSilent:
        fail_link(link, hold, false, now);
        link->is_silent = true;
        grants_.abandon(link->peer());
        break;
      case Life::kEnded:
        note_end(*link);
        break;
    }
  }
}

void Engine::drop_lost_links(Hold& hold, int64_t now) {
  for (size_t i = 0; i < links_.size();) {
    const std::shared_ptr<Link> link = links_[i];
    if (link->wrote_garbage) link->lose();
    if (!link->is_lost() || !fail_link(link, hold, link->wrote_garbage, now)) {
      ++i;
      continue;
    }
    {
      std::lock_guard lock(links_mutex_);
      links_.erase(links_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    auto channel = link->take_channel();
    if (channel != nullptr && !(link->peer() == self_)) pool_.close_channel(std::move(channel));
    give_up(link->peer());
  }
}

void Engine::ask_peers() {
  if (!grants_.has_unasked()) return;
  for (const Grant& grant : grants_.unasked()) {
    std::shared_ptr<Link> link;
    {
      std::lock_guard lock(links_mutex_);
      for (const auto& each : links_)
        if (each->peer() == grant.peer && !each->is_lost()) link = each;
    }
    Record record;
    record.kind = RecordKind::kAskBack;
    record.qp_num = grant.requester;
    record.source_qp = grant.qp_num;
    record.grant = grant.number;
    const Link::Wrote wrote = link == nullptr ? Link::Wrote::kLost : link->write(record, nullptr, 0);
    if (wrote == Link::Wrote::kLost) give_up(grant.peer);
    // Without room, the next turn tries again.
    if (wrote != Link::Wrote::kNotNow) grants_.asked(grant.number);
  }
}

void Engine::give_up(const ProcessId& peer) {
  if (!grants_.any()) return;
  if (pool_.life(peer) == Life::kEnded)
    grants_.ended(peer);
  else
    grants_.abandon(peer);
}

void Engine::free_returned() {
  for (const ProcessId& peer : grants_.abandoned()) give_up(peer);
  free_kept_blocks();
}

void Engine::free_kept_blocks() {
  std::lock_guard lock(kept_blocks_mutex_);
  std::erase_if(kept_blocks_,
                [&](const Block& block) { return !grants_.covers(block.offset, block.bytes) && pool_.free(block); });
}

void Engine::write_kept_datagrams(int64_t now) {
  std::vector<OutDatagram> datagrams;
  {
    std::lock_guard lock(mads_mutex_);
    datagrams.swap(datagrams_);
  }
  std::vector<OutDatagram> kept;
  // A channel can open between two looks at it: what comes behind a datagram that waits for it waits, too.
  std::vector<ProcessId> opening;
  const auto is_opening = [&opening](const ProcessId& to) {
    return std::find(opening.begin(), opening.end(), to) != opening.end();
  };
  for (OutDatagram& datagram : datagrams) {
    const bool is_there = datagram.to == self_ || pool_.life(datagram.to) == Life::kAlive;
    const auto link = is_there ? link_to(datagram.to) : nullptr;
    const bool waits = is_opening(datagram.to) || (link != nullptr && !link->is_open());
    if (waits && now - datagram.since_ns < kOpeningNs) {
      if (!is_opening(datagram.to)) opening.push_back(datagram.to);
      kept.push_back(std::move(datagram));
      continue;
    }
    const base::Piece piece{datagram.payload.data(), datagram.payload.size()};
    if (link != nullptr) link->write(datagram.record, &piece, 1);
  }
  const size_t done = datagrams.size() - kept.size();
  if (!kept.empty()) {
    std::lock_guard lock(mads_mutex_);
    datagrams_.insert(datagrams_.begin(), std::make_move_iterator(kept.begin()), std::make_move_iterator(kept.end()));
    has_work_.store(true);
  }
  kept_.fetch_sub(done, std::memory_order_release);
}

void Engine::write_kept_mads() {
  std::vector<OutMad> mads;
  {
    std::lock_guard lock(mads_mutex_);
    if (mads_.empty()) return;
    mads.swap(mads_);
    for (const OutMad& mad : mads) mads_under_way_.push_back(mad.to);
  }
  std::vector<OutMad> kept;
  for (OutMad& mad : mads) {
    // Behind one that waits for the channel, the later ones wait, too.
    const bool waits = std::any_of(kept.begin(), kept.end(), [&mad](const OutMad& each) { return each.to == mad.to; });
    const bool is_there = mad.to == self_ || pool_.life(mad.to) == Life::kAlive;
    const auto link = is_there ? link_to(mad.to) : nullptr;
    if (link != nullptr && (waits || !write_mad(*link, mad.datagram, mad.from_probe))) kept.push_back(std::move(mad));
  }
  std::lock_guard lock(mads_mutex_);
  mads_under_way_.clear();
  if (kept.empty()) return;
  mads_.insert(mads_.begin(), std::make_move_iterator(kept.begin()), std::make_move_iterator(kept.end()));
  has_work_.store(true);
}

void Engine::open_wanted(int64_t now) {
  if (!has_work_.exchange(false)) return;
  std::vector<ProcessId> wanted;
  {
    std::lock_guard lock(links_mutex_);
    wanted.swap(wanted_);
  }
  for (const ProcessId& process : wanted)
    if (pool_.life(process) != Life::kEnded || process == self_) link_to(process);
  if (keeps_datagrams()) write_kept_datagrams(now);
  write_kept_mads();
}

void Engine::look_at_bells() {
  Pool::News news;
  if (pool_.poll_bells(&news))
    for (const ProcessId& peer : news.offered) link_to(peer);
}

int64_t Engine::bells_pause(int64_t now) {
  const bool opens = std::any_of(links_.begin(), links_.end(), [now](const auto& link) {
    return now - link->made_ns < kOpeningNs && !link->channel().is_open();
  });
  if (opens || has_work_.load(std::memory_order_relaxed)) return kOpeningBellsNs;
  if (receivers_.load(std::memory_order_relaxed) == 0 && !mad_handler_) return kQuietBellsNs;
  // A process that appears rings nobody, so queue pairs that seek theirs look for it.
  std::lock_guard lock(due_mutex_);
  const bool is_polled = is_polled_ || now - active_ns_ < kActiveNs;
  return is_rung_by_all_ && !is_polled && seekers_.empty() ? kQuietBellsNs : kBellsNs;
}

void Engine::keep_house(Hold& hold, int64_t now) {
  if (has_work_.load(std::memory_order_relaxed)) open_wanted(now);
  if (now < house_ns_) return;
  hold.release();
  if (now >= beat_ns_) {
    beat_ns_ = now + kBeatNs;
    pool_.beat(now);
    look_at_lives(hold, now);
    is_rung_by_all_ = pool_.is_rung_by_all();
    free_returned();
  }
  look_at_bells();
  seek_links(hold, now);
  drop_lost_links(hold, now);
  house_ns_ = now + bells_pause(now);
}

}  // namespace nupa::pool
