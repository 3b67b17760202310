#pragma once
#include <atomic>
#include <cstdint>
#include <memory>

#include "rsockets/socket.h"

namespace nupa::rsockets {

/// What a call is about; each has a count of its own, so a sender and a receiver do not share a cache line.
enum class Use : uint32_t { kSend, kReceive, kOther };
constexpr uint32_t kUses = 3;

/// Which descriptor is which rsocket. Looking up takes no lock. A slot stays where it is for good; an rsocket that is
/// closed is destroyed when the last call on it has come back.
class DescriptorTable {
  struct Slot;

 public:
  static DescriptorTable& instance();

  /// Keeps the rsocket in place while a call works on it. Empty if the descriptor is none's.
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
  /// Whether there is an rsocket, without keeping it.
  bool contains(int fd) const;
  /// The rsocket's own descriptor is the number. 0 or a negative errno.
  int add(std::unique_ptr<Socket> socket);
  /// Takes it out, closes it, waits for calls that are inside, destroys it. One that a fork's child has inherited is
  /// its parent's: the child closes its copy of the descriptor and touches nothing else, since any of the rsocket's
  /// locks may be held by a thread of the parent. 0 or -EBADF.
  int close(int fd);
  /// In a forked child: forgets everything without touching it.
  void forget_all();

 private:
  static constexpr uint32_t kChunk = 256;
  static constexpr uint32_t kChunks = 4096;  ///< a million descriptors, Linux's default for fs.nr_open

  struct Count {
    alignas(64) std::atomic<uint32_t> value{0};
  };
  struct Slot {
    alignas(64) std::atomic<Socket*> socket{nullptr};
    Count in_use[kUses];
  };

  Slot* slot(int fd) const;
  /// In a forked child: the calls that were inside are those of other threads of its parent.
  void forget_calls();

  std::atomic<Slot*> chunks_[kChunks] = {};
};

}  // namespace nupa::rsockets
