// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/congestion/congestion.h"

#include "transport/roce/congestion/cubic.h"
#include "transport/roce/congestion/dcqcn.h"
#include "transport/roce/congestion/none.h"
#include "transport/roce/congestion/swift.h"
#include "transport/roce/congestion/tolerant.h"

namespace nupa::roce {

std::unique_ptr<Congestion> make_congestion(std::string_view name, uint32_t packet_bytes) {
  if (name == "tolerant") return std::make_unique<Tolerant>(packet_bytes);
  if (name == "none") return std::make_unique<NoCongestionControl>();
  if (name == "dcqcn") return std::make_unique<Dcqcn>();
  if (name == "swift") return std::make_unique<Swift>(packet_bytes);
  if (name == "cubic") return std::make_unique<Cubic>(packet_bytes);
  return nullptr;
}

std::vector<std::string_view> congestion_names() { return {"tolerant", "none", "dcqcn", "swift", "cubic"}; }

}  // namespace nupa::roce
