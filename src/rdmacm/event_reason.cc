// SPDX-License-Identifier: Apache-2.0
/// Explains events that report a failure, as calls that fail are explained (nupa/reason.h).
#include <arpa/inet.h>

#include <cerrno>
#include <string>

#include "base/gid.h"
#include "base/gid_text.h"
#include "rdmacm/id.h"

namespace nupa::rdmacm {
namespace {

std::string peer_of(const Id& id) {
  return base::gid_text(id.destination.gid) + " port " + std::to_string(id.destination.port);
}

std::string reason_of_rejection(const Id& id, int reason) {
  switch (static_cast<RejectReason>(reason)) {
    case RejectReason::kNoQueuePair:
      return "the peer has no queue pair left";
    case RejectReason::kNoResources:
      return "the peer has no room for the connection";
    case RejectReason::kTimeout:
      return "the peer had no answer in time";
    case RejectReason::kUnsupported:
      return "the peer does not support the request";
    case RejectReason::kInvalidCommunicationId:
      return "the peer does not know the connection";
    case RejectReason::kInvalidServiceId:
      return "no program listens at " + peer_of(id) + " with rdma_listen()";
    case RejectReason::kInvalidTransportType:
      return "the listener at " + peer_of(id) + " has another port space or type of queue pair";
    case RejectReason::kStaleConnection:
      return "the peer has ended the connection already, or knows the queue pair from an earlier one";
    case RejectReason::kConsumer:
      return "the peer's program called rdma_reject(), or ended";
    case RejectReason::kUnsupportedVersion:
      return "the peer does not support this version of the connection manager";
  }
  return "the peer gave a reason of IBTA table 109";
}

std::string reason_of_datagrams(const Id& id, DatagramStatus status) {
  switch (status) {
    case DatagramStatus::kUnsupported:
      return "no program listens at " + peer_of(id) + " with rdma_listen()";
    case DatagramStatus::kRejected:
      return "the peer's program called rdma_reject(), or ended";
    case DatagramStatus::kNoQueuePair:
      return "the peer has no queue pair for it";
    case DatagramStatus::kRedirected:
      return "the peer names another port, which is not followed";
    default:
      return "the peer does not support this version of the connection manager";
  }
}

void explain_as(const char* name, int code, int status, const std::string& reason) {
  explain(("rdma_get_cm_event: " + std::string(name)).c_str(), code,
          ("status " + std::to_string(status) + ": " + reason).c_str());
}

}  // namespace

void explain_event(const Event& event) {
  const int status = event.seen.status;
  if (status == 0 || !explains()) return;
  const char* const name = rdma_event_str(event.seen.event);
  const Id& id = *event.id;
  if (event.number() == RDMA_CM_EVENT_REJECTED)
    explain_as(name, ECONNREFUSED, status, reason_of_rejection(id, status));
  else if (event.datagram_reply)
    explain_as(name, ECONNREFUSED, status, reason_of_datagrams(id, event.datagram_reply->status));
  else if (event.number() == RDMA_CM_EVENT_UNREACHABLE)
    explain_as(name, -status, status,
               peer_of(id) + " has not answered: no process of NUPA and no adapter there, or UDP port 4791 is blocked");
  else if (status < 0)
    explain(("rdma_get_cm_event: " + std::string(name)).c_str(), -status, nullptr);
}

}  // namespace nupa::rdmacm
