#pragma once
#include "ccl/channel/layout.h"
#include "ccl/coroutine/steps.h"

namespace nupa::ccl {

/// Messages between this rank and another one, in both directions, in order, in pieces of limited size. One thread at a
/// time sends, and one receives.
class Lane {
 public:
  virtual ~Lane() = default;

  /// Most bytes of a piece.
  virtual size_t piece_bytes() const = 0;
  /// Until there is room for a piece.
  virtual Wait can_send() const = 0;
  /// Where the next piece is to be put, once there is room. Nothing has to stay there after send().
  virtual std::byte* room() = 0;
  virtual void send(size_t bytes) = 0;
  /// Sends a piece from where it lies, for which there is room. It has to stay as it is until all_arrived(). False: it
  /// was not sent, for the lane does not do that.
  virtual bool lend(const void* data, size_t bytes) = 0;
  /// Whether something that was lent may still be read.
  virtual bool has_loans() const = 0;

  /// Until there is a piece.
  virtual Wait can_receive() const = 0;
  /// The oldest piece that is there. It stays until pop().
  virtual const std::byte* front() const = 0;
  virtual size_t front_bytes() const = 0;
  virtual void pop() = 0;

  /// Whether anything was sent or has come.
  virtual bool is_used() const = 0;
  /// The other end has said that this piece was its last.
  virtual void pop_last() = 0;
  /// Until all that was sent has arrived, or the other end needs no more.
  virtual Wait all_arrived() const = 0;
};

}  // namespace nupa::ccl
