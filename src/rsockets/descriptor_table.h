// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>

#include "rsockets/socket.h"

namespace nupa::rsockets {

/// The kind of a call. Each kind has a separate count, so a sender and a receiver do not share a cache line.
enum class Use : uint32_t { kSend, kReceive, kOther };
constexpr uint32_t kUses = 3;

/// Maps descriptors to rsockets. A lookup takes no lock. A slot never moves. A closed rsocket is destroyed when the
/// last call on it has returned.
///
/// Memory order, on any processor: add() releases the rsocket, and lease() acquires it. Store and load: a call counts
/// itself and then looks at the rsocket, close() removes the rsocket and then looks at the counts. All four are
/// sequentially consistent: close() waits for the call, or the call finds no rsocket. The end of a lease releases what
/// the call did, and close() acquires it before it destroys the rsocket.
class DescriptorTable {
  struct Slot;

 public:
  static DescriptorTable& instance();

  /// Keeps the rsocket alive while a call works on it. Empty if the descriptor is no rsocket.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept : slot_(other.slot_), socket_(other.socket_), use_(other.use_) {
      other.slot_ = nullptr;
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Lease& operator=(Lease&&) = delete;
    ~Lease();

    explicit operator bool() const { return slot_ != nullptr; }
    Socket* operator->() const { return socket_; }
    Socket* get() const { return socket_; }

   private:
    friend class DescriptorTable;
    Lease(Slot* slot, Socket* socket, Use use) : slot_(slot), socket_(socket), use_(use) {}

    Slot* slot_ = nullptr;
    Socket* socket_ = nullptr;
    Use use_ = Use::kOther;
  };

  Lease lease(int fd, Use use);
  /// Returns whether the descriptor is an rsocket. Does not keep it alive.
  bool contains(int fd) const;
  /// Adds the rsocket under its descriptor's number. Returns 0 or a negative errno.
  int add(std::unique_ptr<Socket> socket);
  /// Removes the rsocket, closes it, waits for calls that are inside, and destroys it. An rsocket that a forked child
  /// has inherited belongs to the parent. The child only closes its copy of the descriptor, since a thread of the
  /// parent may have held any of the rsocket's locks at the fork. Returns 0 or -EBADF.
  int close(int fd);
  /// In a forked child: clears the table without touching the rsockets.
  void forget_all();

 private:
  static constexpr uint32_t kChunk = 256;
  static constexpr uint32_t kChunks = 4096;  ///< enough for a million descriptors, Linux's default for fs.nr_open

  struct Count {
    alignas(64) std::atomic<uint32_t> value{0};
  };
  struct Slot {
    alignas(64) std::atomic<Socket*> socket{nullptr};
    Count in_use[kUses];
  };

  Slot* slot(int fd) const;
  /// In a forked child: clears the counts of calls, which belong to the parent's other threads.
  void forget_calls();

  std::atomic<Slot*> chunks_[kChunks] = {};
};

}  // namespace nupa::rsockets
