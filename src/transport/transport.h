#pragma once
/// A transport executes work requests that the core has checked. One endpoint stands behind one queue pair.

#include <memory>

#include <nupa/queue_pair.h>
#include <nupa/result.h>
#include "segment/layout.h"

namespace nupa::transport {

/// A piece of this process's memory, already checked against its key. `data` null: a null region.
struct Piece {
  std::byte* data;
  uint64_t length;
};

/// One request, checked and translated by the core. Lives only during the call.
struct Request {
  Opcode opcode;
  bool solicited;
  uint32_t imm_or_rkey;
  uint32_t rkey;
  uint64_t remote_addr;
  uint64_t compare_add;
  uint64_t swap;
  uint32_t remote_qpn;          ///< UD
  uint32_t remote_qkey;         ///< UD
  uint32_t remote_srqn;         ///< XRC
  const AddressVector* vector;  ///< UD
  const Piece* pieces;
  uint32_t piece_count;
  uint64_t length;  ///< of all pieces together
};

enum class Verdict : uint8_t {
  kDone,      ///< completed, well or not: see status
  kNotReady,  ///< the receiver has no receive posted (RNR): try again
  kNoAnswer,  ///< the peer cannot be reached or does not take requests yet: try again
};

struct Outcome {
  Verdict verdict = Verdict::kDone;
  WcStatus status = WcStatus::kSuccess;
  uint32_t rnr_timer = 0;  ///< kNotReady: the receiver's timer code (IBTA table 45)
};

/// What an endpoint knows of the queue pair it serves.
struct LocalQp {
  segment::QpShared* shared;
  uint32_t qp_num;
  QpType type;
};

/// All calls of one endpoint are made with the queue pair's send lock held.
class Endpoint {
 public:
  virtual ~Endpoint() = default;
  virtual Outcome execute(const Request& request) = 0;
  /// Looks for the other end if it is not known yet. kGone: it should be on this host, and is not.
  enum class Reach : uint8_t { kMet, kUnknown, kGone };
  virtual Reach reach() = 0;
  /// A line for people: where the other end is ("window", "slot 3").
  virtual const char* name() const = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  /// Connected types: `vector` and `remote_qpn` name the other end, that need not exist yet. UD: both unused.
  virtual Result<std::unique_ptr<Endpoint>> connect(const LocalQp& qp, const AddressVector& vector,
                                                    uint32_t remote_qpn) = 0;
};

}  // namespace nupa::transport
