// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/queue_pair.h>

#include "capture/messages.h"
#include "core/seam/device_entry.h"
#include "core/seam/request.h"

namespace nupa::core {

/// The addresses of packets from a device to a destination. `transport`: its name, which stays.
capture::Flow flow_of(const DeviceEntry& device, const AddressVector& vector, QpType type, uint32_t number,
                      std::string_view transport);
/// A request as a capture records it. `pieces`: its list.
capture::Message message_of(const SendWr& wr, const Piece* pieces, uint32_t count, uint64_t length);

/// Records the requests of one connected queue pair whose transport has no packets, for `nupa capture`. Under the queue
/// pair's send lock. Called only while a capture is attached.
class RequestRecorder {
 public:
  /// `sq_psn`: the number of the first request that is recorded.
  RequestRecorder(const capture::Flow& flow, uint32_t sq_psn) : flow_(flow), sq_psn_(sq_psn) {}

  /// The transport is about to get the request.
  void posted(const Request& request);
  /// A request ended. `message`: as posted() recorded it, with what is in the memory of its list now.
  void ended(const capture::Message& message, uint32_t position, WcStatus status);

 private:
  capture::Flow flow_;
  const uint32_t sq_psn_;
  uint32_t capture_ = 0;  ///< capture::number() of the capture that has the requests from first_ on; 0: none
  uint32_t first_ = 0;
};

}  // namespace nupa::core
