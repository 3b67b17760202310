// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The doorbell of a process within its pool: what it publishes, which processes it can ring, and its sleep.

#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/log.h"
#include "transport/pool/medium/directory.h"
#include "transport/pool/medium/doorbell.h"
#include "transport/pool/medium/open_doorbell.h"
#include "transport/pool/medium/sleep.h"

namespace nupa::pool {

/// The caller holds the lock of the directory, unless a comment states otherwise.
template <CachePolicy Policy>
class PoolDoorbell {
 public:
  /// Another process, which this one rings and which rings this one.
  struct Peer {
    DoorbellLine line;
    const Line* sleep;
    Line* word;
  };

  explicit PoolDoorbell(Directory<Policy>& directory) : directory_(directory) {}

  /// Opens the doorbell of the medium by open_doorbell(memory), and publishes it for the process that begins in this
  /// record.
  template <class Memory>
  void start(const Memory& memory, uint16_t record, uint64_t instance) {
    auto opened = open_doorbell(memory);
    if (opened)
      if (auto started = (*opened)->start(place_of(record)); !started) opened = tl::unexpected(started.error());
    DoorbellLine mine;
    if (opened) {
      doorbell_ = std::move(*opened);
      mine = doorbell_->line();
    } else if (opened.error().code() == ENOTSUP) {
      NUPA_DEBUG("pool %s: no doorbell: %s", memory.spec().medium().c_str(), opened.error().what());
    } else {
      NUPA_WARN("pool %s: no doorbell: %s", memory.spec().medium().c_str(), opened.error().what());
    }
    mine.instance = instance;
    directory_.put_doorbell(record, mine);
  }

  /// -1: there is none. Any thread, after start().
  int fd() const { return doorbell_ == nullptr ? -1 : doorbell_->fd(); }
  /// Any thread.
  void take() {
    if (doorbell_ != nullptr) doorbell_->take();
  }

  /// No value: the processes do not ring each other.
  std::optional<Peer> peer(const ProcessId& process) {
    if (doorbell_ == nullptr) return std::nullopt;
    const DoorbellLine found = directory_.doorbell_of(process);
    const auto own = directory_.host_line(directory_.host());
    const auto theirs = directory_.host_line(process.host);
    if (!own || !theirs || !doorbell_->reaches(found, *own, *theirs)) return std::nullopt;
    return Peer{found, directory_.line(process.host, process.record, kSleepLine),
                directory_.line(process.host, process.record, kDoorbellWordLine)};
  }
  /// True if each living process rings this one.
  bool is_rung_by_all() {
    bool all = doorbell_ != nullptr;
    if (!all) return false;
    directory_.each_process([&](const ProcessId& process, const Description&) {
      const bool is_other = process != directory_.self() && directory_.life(process) == Life::kAlive;
      all = !is_other || peer(process).has_value();
      return all;
    });
    return all;
  }

  /// One more thread sleeps, or one fewer.
  void announce(bool sleeps) {
    const uint32_t others = sleeps ? sleepers_++ : --sleepers_;
    if (others == 0) directory_.sleeps(sleeps);
  }
  /// Something was published for the peer. Any thread, without the lock. `policy`: that of the directory, or the type
  /// that it stands for.
  template <CachePolicy Some>
  void wake(Some policy, const Peer& peer) {
    if (is_asleep(policy, peer.sleep)) doorbell_->ring(peer.line, peer.word);
  }

 private:
  DoorbellPlace place_of(uint16_t record) {
    DoorbellPlace place{directory_.line(directory_.host(), record, kDoorbellWordLine), record, {}};
    directory_.each_neighbour([&](const ProcessLine& process, const DoorbellLine& line) {
      place.neighbours.push_back({process.pid, line});
    });
    return place;
  }

  Directory<Policy>& directory_;
  std::unique_ptr<Doorbell> doorbell_;  ///< constant after start()
  uint32_t sleepers_ = 0;               ///< threads of this process
};

}  // namespace nupa::pool
