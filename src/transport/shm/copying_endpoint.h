// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>

#include "copy/copy_engine.h"
#include "transport/shm/connected.h"

namespace nupa::shm_transport {

/// The requester's side of a queue pair whose large WRITEs and READs a copy engine copies. Such a request waits among
/// the deferred sends until it is copied, so all later ones wait behind it.
class CopyingEndpoint final : public Connected {
 public:
  /// `least_bytes`: the length from which a request uses the engine, which outlives the endpoint. The others: see
  /// Connected.
  CopyingEndpoint(copy::CopyEngine& engine, uint64_t least_bytes, Peers& peers, core::QpContext& context,
                  const AddressVector& vector, uint32_t remote_qpn, std::chrono::milliseconds limit)
      : Connected(peers, context, vector, remote_qpn, limit), engine_(engine), least_bytes_(least_bytes) {}
  ~CopyingEndpoint() override { CopyingEndpoint::stop_copy(); }

  core::Posted post(const core::Request& request) override {
    if (request.length < least_bytes_) [[likely]]
      return Connected::post(request);
    return post_large(request);
  }

 private:
  [[gnu::noinline]] core::Posted post_large(const core::Request& request);
  bool uses_engine(const core::Request& request) const;
  Outcome run_oldest(uint64_t* length) override;
  int64_t next_look(int64_t now_ns) override { return engine_.next_look(*job_, now_ns); }
  void stop_copy() override;

  /// Gives the request to the engine, or executes it here.
  Outcome begin(const core::Request& request);
  /// Fills `job_`. Returns false if an engine cannot copy between these places.
  bool describe(const core::Request& request, const host::RemoteRange& range);
  /// Marks that an engine copies, before submit().
  void make_busy();
  void make_idle();
  /// Looks at the engine's copy.
  Outcome go_on();
  /// Completes the receive of a WRITE with immediate data, whose bytes are in place.
  Outcome complete_immediate();

  copy::CopyEngine& engine_;
  const uint64_t least_bytes_;
  std::unique_ptr<copy::CopyJob> job_;
  std::shared_ptr<host::MappedRegion> region_;  ///< the peer's memory that the job accesses; null: of this process
  uint64_t length_ = 0;                         ///< of the request that is copied
  // These are about the oldest request. At most one of them is true.
  bool is_copying_ = false;  ///< its job is submitted
  bool is_copied_ = false;   ///< its bytes are in place, and the receive of its immediate data is not completed
};

}  // namespace nupa::shm_transport
