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

/// A UD queue pair on one of the host's addresses, with its buffers. Not thread-safe, except resolve(): the datagram
/// rsocket's lock.
class DatagramPath {
 public:
  struct Sizes {
    uint32_t send_requests;
    uint32_t receive_requests;
    uint32_t inline_bytes;
  };
  /// A datagram that arrived: header and payload, valid until give_back().
  struct Arrival {
    uint32_t slot;
    const std::byte* data;
    uint32_t length;
  };

  /// local: with the port that peers answer to. Null with errno set.
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
  /// Where the next datagram is written, header first; then send().
  std::byte* next() { return send_memory_ + size_t{free_.back()} * kLowWater; }
  int send(uint32_t length, ibv_ah* ah, uint32_t queue_pair);
  /// Takes completions; true: *arrival is a datagram, and there may be more.
  bool poll(Arrival* arrival);
  void give_back(uint32_t slot);

  /// How to reach a peer's address from here: null with errno set. Waits for up to two resolutions.
  /// limit: gets the most that one datagram to there carries, its header included.
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
  /// Pages of their own: registering memory that the heap shares with others would move theirs, too.
  std::byte* memory_ = nullptr;
  size_t memory_bytes_ = 0;
  std::byte* send_memory_ = nullptr;
  std::byte* receive_memory_ = nullptr;
  ibv_mr* region_ = nullptr;
  std::vector<uint32_t> free_;
};

}  // namespace nupa::rsockets
