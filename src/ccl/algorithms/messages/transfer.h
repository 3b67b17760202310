#pragma once
/// What algorithms on lanes are made of.
#include "ccl/channel/lane_group.h"
#include "ccl/call/arrays.h"
#include "ccl/reduce/combine.h"

namespace nupa::ccl::lanes {

/// Until there is a lane to that rank. To be awaited only where group.has() is false.
Steps reach(LaneGroup& group, uint32_t rank);
/// Until there are lanes to all.
Steps reach_all(LaneGroup& group);

/// Puts one piece under way, for which there is room.
inline void send_piece(Lane& lane, const void* data, size_t bytes) {
  copy_array(lane.room(), data, bytes);
  lane.send(bytes);
}
/// Pieces that are sent from where they lie, by lanes that can. Before what they are part of may change, and before the
/// program goes on, settle() is to be awaited; not where an error has ended all.
class Loans {
 public:
  /// `stays`: nothing is written to what is sent until then. `bytes`: what one rank is sent; little is rather copied
  /// than waited for.
  Loans(LaneGroup& group, bool stays, size_t bytes) : group_(group), lends_(stays && bytes >= kLeastBytes) {}

  FramePool& frames() { return group_.frames(); }
  /// As send_piece().
  void send(Lane& lane, const void* data, size_t bytes) {
    if (lends_ && bytes >= kLeastPiece && lane.lend(data, bytes))
      are_out_ = true;
    else
      send_piece(lane, data, bytes);
  }
  Steps settle();

 private:
  static constexpr size_t kLeastBytes = 4 << 20;
  static constexpr size_t kLeastPiece = 4 << 10;

  LaneGroup& group_;
  const bool lends_;
  bool are_out_ = false;
};

/// An array as pieces; at least one, which may be empty.
Steps send_array(LaneGroup& group, uint32_t to, const void* data, size_t bytes, Loans* loans = nullptr);
Steps receive_array(LaneGroup& group, uint32_t from, void* data, size_t bytes);

/// Takes one piece that is there. EPROTO: it has another length.
inline int take_piece(Lane& lane, void* to, size_t bytes) {
  if (lane.front_bytes() != bytes) return EPROTO;
  copy_array(to, lane.front(), bytes);
  lane.pop();
  return 0;
}

/// One array goes to a rank while another one comes from a rank, which may be the same.
struct Flow {
  uint32_t to;
  const void* send;
  size_t send_bytes;
  uint32_t from;
  void* receive;
  size_t receive_bytes;
  /// Null: what comes is put where it belongs; else it is combined with what is there.
  const Reducer* reducer = nullptr;
  bool comes_first = false;  ///< what comes is of ranks before those whose elements are there
  Loans* loans = nullptr;    ///< by which to send
};
/// Piece by piece, so that none waits for room while both have something to send. A piece is sent before what comes in
/// its place: both arrays may be one.
Steps flow(LaneGroup& group, Flow flow);

/// What a rank begins with, where elements are combined in groups: its own, multiplied by its factor.
void begin_with(const Reducer& reducer, void* to, const void* from, size_t elements);
/// For what comes between that and the last time.
inline Reducer partial(Reducer reducer) {
  reducer.reduction.divisor = 0;
  if (has_factors(reducer)) reducer.reduction.op = Operator::kSum;
  return reducer;
}
/// The last thing to be done to elements that were combined by partial().
void end_with(const Reducer& reducer, void* elements, size_t count);

/// Learns what each rank multiplies its elements with. To be awaited only where has_factors().
Steps exchange_factors(LaneGroup& group, const Reducer& reducer, Factors* factors);

}  // namespace nupa::ccl::lanes
