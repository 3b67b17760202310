#pragma once
/// What algorithms on lanes are made of.
#include "ccl/lane/lane_group.h"
#include "ccl/parts.h"
#include "ccl/reduce/combine.h"

namespace nupa::ccl::lanes {

/// Until there is a lane to that rank. To be awaited only where group.has() is false.
Steps reach(LaneGroup& group, uint32_t rank);
/// Until there are lanes to all.
Steps reach_all(LaneGroup& group);

/// An array as pieces; at least one, which may be empty.
Steps send_array(LaneGroup& group, uint32_t to, const void* data, size_t bytes);
Steps receive_array(LaneGroup& group, uint32_t from, void* data, size_t bytes);

/// Puts one piece under way, for which there is room.
inline void send_piece(Lane& lane, const void* data, size_t bytes) {
  copy_array(lane.room(), data, bytes);
  lane.send(bytes);
}
/// Takes one piece that is there. EPROTO: it has another length.
inline int take_piece(Lane& lane, void* to, size_t bytes) {
  if (lane.front_bytes() != bytes) return EPROTO;
  copy_array(to, lane.front(), bytes);
  lane.pop();
  return 0;
}

/// Learns what each rank multiplies its elements with. To be awaited only where has_factors().
Steps exchange_factors(LaneGroup& group, const Reducer& reducer, Factors* factors);

}  // namespace nupa::ccl::lanes
