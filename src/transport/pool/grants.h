// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Memory of this process that peers may write without its help: the owner's side of placing. No I/O.
///
/// A queue pair that receives an RDMA WRITE for a region in the pool grants the region to the requester, which places
/// the data of later ones itself (Granted has the requester's side). A grant ends when the requester returns it, and
/// until then it may write at any time. So the owner revokes a key or a right first, asks for the grants back, and
/// waits before it uses the memory for something else. The requester answers under the send lock under which it places:
/// its last stores come before its answer, and no fence of either side has to order a look at a grant with the stores
/// of data.
///
/// Any thread. add() is called with the send lock of the granting queue pair held, so that a grant by a key that was
/// revoked is here when quiesce() has returned.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "transport/pool/granted.h"
#include "transport/pool/medium/pool.h"

namespace nupa::pool {

/// Memory of this process that a peer may write to.
struct Grant {
  uint32_t number = 0;  ///< unique among those that are not returned; at most Grants::kMostNumber
  ProcessId peer;
  uint32_t qp_num = 0;     ///< the queue pair that grants
  uint32_t requester = 0;  ///< the peer's queue pair
  uint32_t rkey = 0;
  uint64_t address = 0;  ///< of the region, as its key has it
  uint64_t bytes = 0;
  uint64_t offset = 0;  ///< of the region in the pool
};

class Grants {
 public:
  /// A number travels in an answer, which has 31 bits for it.
  static constexpr uint32_t kMostNumber = (uint32_t{1} << 31) - 1;

  /// The grants by a key or of a queue pair; 0: any.
  struct Which {
    uint32_t rkey = 0;
    uint32_t qp_num = 0;
    bool has(const Grant& grant) const {
      return (rkey == 0 || rkey == grant.rkey) && (qp_num == 0 || qp_num == grant.qp_num);
    }
  };

  /// Adds a grant and sets its number. False: the queue pair has granted the region before, or too many.
  bool add(Grant* grant);
  /// The grant never left this process.
  void drop(uint32_t number);
  /// The peer writes no more by this grant.
  void returned(const ProcessId& peer, uint32_t number);
  /// The peer has ended: it writes no more.
  void ended(const ProcessId& peer);
  /// True if the peer may place by a grant of that queue pair, that the owner has not given up.
  bool has(uint32_t number, const ProcessId& peer, uint32_t qp_num, uint32_t rkey) const;

  /// These are to be asked back. Returns false if there are none.
  bool ask_back(const Which& which);
  /// Grants that are to be asked back, whose peers have not been asked.
  bool has_unasked() const { return unasked_.load(std::memory_order_acquire) != 0; }
  std::vector<Grant> unasked() const;
  void asked(uint32_t number);
  /// True if one of these is still out whose peer may answer soon.
  bool awaits(const Which& which) const;
  /// The peer does not answer: nobody waits for it until it returns a grant. It may still write.
  void abandon(const ProcessId& peer);
  /// It lives again.
  void revive(const ProcessId& peer);
  /// The same as abandon() for the peers of these. Returns how many grants are out.
  size_t abandon(const Which& which);

  /// The peers whose grants were abandoned.
  std::vector<ProcessId> abandoned() const;
  /// True if a peer may write to a part of these bytes of the pool.
  bool covers(uint64_t offset, uint64_t bytes) const;
  bool any() const { return out_.load(std::memory_order_acquire) != 0; }

 private:
  enum class State : uint8_t { kGiven, kToAsk, kAsked };
  struct Entry {
    Grant grant;
    State state = State::kGiven;
    bool is_abandoned = false;  ///< nobody waits for the peer
    bool is_late = false;       ///< the owner has stopped to wait, and the key may name other memory by now
  };
  void count();  ///< under mutex_

  mutable std::mutex mutex_;           ///< leaf
  std::map<uint32_t, Entry> entries_;  ///< by number
  uint32_t last_number_ = 0;
  std::atomic<size_t> out_{0};      ///< entries_
  std::atomic<size_t> unasked_{0};  ///< of them, State::kToAsk
};

}  // namespace nupa::pool
