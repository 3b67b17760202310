#include "transport/roce/congestion/congestion.h"

#include "transport/roce/congestion/none.h"

namespace nupa::roce {

std::unique_ptr<Congestion> make_congestion(std::string_view name, uint32_t) {
  if (name == "none") return std::make_unique<NoCongestionControl>();
  return nullptr;
}

std::vector<std::string_view> congestion_names() { return {"none"}; }

}  // namespace nupa::roce
