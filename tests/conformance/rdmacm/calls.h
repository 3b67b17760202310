// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Ids in any state of a connection, for tests of the calls on them.
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "fixture.h"

namespace nupa::test {

constexpr uint16_t kWholePkey = 0xffff;

inline int set_id_byte(rdma_cm_id* id, int option, uint8_t value) {
  return rdma_set_option(id, RDMA_OPTION_ID, option, &value, sizeof value);
}

inline int resolve(rdma_cm_id* id, const char* from, const char* to, uint16_t from_port = 0, uint16_t to_port = 7) {
  Address destination(to, to_port);
  if (from == nullptr) return rdma_resolve_addr(id, nullptr, destination.get(), 100);
  return rdma_resolve_addr(id, Address(from, from_port).get(), destination.get(), 100);
}

inline std::string address_text(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET)
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof text);
  if (address->sa_family == AF_INET6)
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text, sizeof text);
  return text;
}

inline bool is_ipv4(const ibv_gid& gid) { return gid.raw[10] == 0xff && gid.raw[0] == 0; }

inline std::string source_of(rdma_cm_id* id) { return address_text(rdma_get_local_addr(id)); }

class RdmaCmCalls : public RdmaCm {
 protected:
  /// An id of `active_` whose address is resolved, and whose event is acknowledged.
  OwnId addressed(const char* to = "127.0.0.1") {
    OwnId id = make_id(active_.get());
    EXPECT_EQ(resolve(id.get(), nullptr, to), 0) << errno;
    EXPECT_EQ(active_.next().type, RDMA_CM_EVENT_ADDR_RESOLVED);
    return id;
  }

  /// Runs `call` in a thread, expects that it waits, lets go of it by `release`, and expects that it ends.
  static void expect_waits_until(const std::function<void()>& call, const std::vector<std::function<void()>>& release) {
    std::atomic<bool> done{false};
    std::thread caller([&] {
      call();
      done = true;
    });
    for (const auto& step : release) {
      // sleep: a call that does not wait would return within that time
      std::this_thread::sleep_for(std::chrono::milliseconds(kWhileMs));
      EXPECT_FALSE(done) << "before step " << &step - release.data();
      step();
    }
    caller.join();
  }
};

constexpr uint32_t kUsablePath = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL;

inline ibv_path_data path_data_of(const rdma_cm_id* id, uint32_t flags, uint8_t hop_limit) {
  ibv_path_data data{};
  data.flags = flags;
  data.path.sgid = id->route.addr.addr.ibaddr.sgid;
  data.path.dgid = id->route.addr.addr.ibaddr.dgid;
  data.path.pkey = kWholePkey;
  data.path.reversible_numpath = 0x81;
  data.path.flowlabel_hoplimit = htobe32(0x54321u << 8 | hop_limit);
  data.path.tclass = 0x44;
  data.path.mtu = 0x80 | IBV_MTU_1024;  // "exactly", as in a path record
  return data;
}

}  // namespace nupa::test
