// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "rsockets/wire.h"

namespace nupa::rsockets {

/// The buffers that this side mapped for riowrite() of the peer, and the place of the peer's table of them. Any thread.
class Mappings {
 public:
  /// A mapping that is not announced to the peer yet.
  struct Announcement {
    uint32_t index;
    RemoteMapping mapping;
    uint64_t number;
  };

  Mappings() = default;
  ~Mappings();
  Mappings(const Mappings&) = delete;
  Mappings& operator=(const Mappings&) = delete;

  /// Sets the peer's table; its length counts entries.
  void set_table(const RemoteBuffer& table) { table_ = table; }
  uint64_t entry_addr(uint32_t index) const { return table_.addr + index * sizeof(RemoteMapping); }
  uint32_t table_key() const { return table_.key; }

  /// Returns 0 or a negative errno: ENOMEM if the peer's table is full. `remote` permits writes by the peer.
  int add(ibv_pd* pd, void* buffer, size_t length, bool remote, uint64_t offset);
  int remove(const void* buffer, size_t length);

  bool pending() const { return pending_.load(std::memory_order_acquire); }
  /// Returns the next mapping to announce. Sender's thread only.
  bool next(Announcement* announcement);
  /// Marks a mapping as announced. The number is compared, because another buffer may have got the same index since
  /// next().
  void announced(const Announcement& announcement);
  void clear();

 private:
  static constexpr uint32_t kLocal = UINT32_MAX;
  struct Entry {
    ibv_mr* region;
    uint64_t offset;
    uint32_t index;
    uint64_t number;  ///< unique among all entries ever made; an index is used again
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
