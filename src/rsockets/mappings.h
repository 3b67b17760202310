#pragma once
#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "rsockets/wire.h"

namespace nupa::rsockets {

/// Buffers that this side mapped for riowrite() of the peer, and where the peer's table of them is. Any thread.
class Mappings {
 public:
  /// One that the peer has to be told of.
  struct Announcement {
    uint32_t index;
    RemoteMapping mapping;
    uint64_t number;
  };

  Mappings() = default;
  ~Mappings();
  Mappings(const Mappings&) = delete;
  Mappings& operator=(const Mappings&) = delete;

  /// The peer's table; length counts its entries.
  void set_table(const RemoteBuffer& table) { table_ = table; }
  uint64_t entry_addr(uint32_t index) const { return table_.addr + index * sizeof(RemoteMapping); }
  uint32_t table_key() const { return table_.key; }

  /// 0 or a negative errno: ENOMEM if the peer's table is full. remote: the peer may write it.
  int add(ibv_pd* pd, void* buffer, size_t length, bool remote, uint64_t offset);
  int remove(const void* buffer, size_t length);

  bool pending() const { return pending_.load(std::memory_order_acquire); }
  /// The next one to announce; the sender's thread.
  bool next(Announcement* announcement);
  /// The peer has been told. Meanwhile another buffer may have got the same index, of which it has not.
  void announced(const Announcement& announcement);
  void clear();

 private:
  static constexpr uint32_t kLocal = UINT32_MAX;
  struct Entry {
    ibv_mr* region;
    uint64_t offset;
    uint32_t index;
    uint64_t number;  ///< of no other entry before or after; an index is used again
    bool announced;
  };

  void look_for_pending();

  std::mutex mutex_;
  RemoteBuffer table_{};
  std::vector<Entry> entries_;
  uint64_t last_number_ = 0;
  std::atomic<bool> pending_{false};
};

}  // namespace nupa::rsockets
