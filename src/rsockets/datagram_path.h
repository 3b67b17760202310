// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <rdma/rdma_cma.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "rsockets/datagram_header.h"
#include "rsockets/endpoint.h"
#include "rsockets/limits.h"
#include "rsockets/wire.h"

namespace nupa::rsockets {

/// A UD queue pair on one of the host's addresses, with its buffers. Not thread-safe except resolve(): the caller holds
/// the datagram rsocket's lock.
class DatagramPath {
 public:
  struct Sizes {
    uint32_t send_requests;
    uint32_t receive_requests;
    uint32_t inline_bytes;
  };
  /// An arrived datagram with its header. It is valid until give_back().
  struct Arrival {
    uint32_t slot;
    const std::byte* data;
    uint32_t length;
  };

  /// `local` includes the port that peers answer to. Returns null and sets errno on failure.
  static std::unique_ptr<DatagramPath> make(const sockaddr_storage& local, const Sizes& sizes);
  ~DatagramPath();
  DatagramPath(const DatagramPath&) = delete;
  DatagramPath& operator=(const DatagramPath&) = delete;

  const sockaddr_storage& local() const { return local_; }
  const DatagramHeader& header() const { return header_; }
  uint32_t queue_pair() const { return id_->qp->qp_num; }
  CompletionSource& source() { return source_; }

  bool can_send() const { return !free_.empty(); }
  bool all_sent() const { return free_.size() == sizes_.send_requests; }
  /// Returns the place for the next datagram, header first. The caller then calls send().
  std::byte* next() { return send_memory_ + size_t{free_.back()} * kLowWater; }
  int send(uint32_t length, ibv_ah* ah, uint32_t queue_pair);
  /// Takes completions. True if *arrival holds a datagram, and then there may be more.
  bool poll(Arrival* arrival);
  void give_back(uint32_t slot);

  /// Returns the address handle of a peer, or null with errno set. Blocks for up to two resolutions. *limit receives
  /// the most bytes of a datagram to this peer, header included.
  ibv_ah* resolve(const sockaddr_storage& peer, uint32_t* limit) const;

 private:
  static constexpr uint32_t kGrh = sizeof(ibv_grh);
  static constexpr uint32_t kReceiveSlot = kLowWater + kGrh;

  DatagramPath() = default;
  int open(const Sizes& sizes);
  int post_receive(uint32_t slot);

  sockaddr_storage local_{};
  DatagramHeader header_{};
  Sizes sizes_{};
  EventChannel channel_;
  rdma_cm_id* id_ = nullptr;
  CompletionSource source_;
  /// Pages that are not shared with the heap. Registration may move its pages, and would then move the heap's pages,
  /// too.
  std::byte* memory_ = nullptr;
  size_t memory_bytes_ = 0;
  std::byte* send_memory_ = nullptr;
  std::byte* receive_memory_ = nullptr;
  ibv_mr* region_ = nullptr;
  std::vector<uint32_t> free_;
};

}  // namespace nupa::rsockets
