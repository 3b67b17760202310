// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <optional>

#include <nupa/types.h>
#include "transport/roce/wire/wire.h"

namespace nupa::roce {

/// The addresses of a packet. IPv4 addresses are written as ::ffff:a.b.c.d; both are of one family.
struct Route {
  Gid source;
  Gid destination;
  uint16_t source_port = kUdpPort;
  uint16_t destination_port = kUdpPort;
  bool operator==(const Route&) const = default;
};

/// A cache of the CRC's state after the IP and UDP headers: a port meets few payload lengths on few routes. One thread.
class RouteStates {
 public:
  uint32_t of(const Route& route, uint32_t udp_payload);

 private:
  struct Known {
    Route route;
    uint32_t udp_payload = ~uint32_t{0};
    uint32_t state = 0;
  };
  static constexpr uint32_t kKnown = 16;
  std::array<Known, kKnown> all_;
};

/// The invariant CRC (IBTA 7.8.1 and annex A17.3.3). It covers the IP and UDP headers, with the fields that routers
/// change masked, and all bytes after them. It is computed in two steps because the payload may lie apart from the
/// headers.
///
/// `udp_payload`: bytes of UDP payload, including the CRC's 4 bytes. `identification`: that of the IPv4 header. Returns
/// the state after IP, UDP and the `header_length` bytes from the base transport header on.
uint32_t icrc_of_headers(const Route& route, uint16_t identification, uint32_t udp_payload, const std::byte* headers,
                         uint32_t header_length, RouteStates* known = nullptr);
/// The state of a FLUSH as Linux's rdma_rxe has it (6.2 to 6.12 at least): it counts the transport headers twice, the
/// second time without a mask, because its table has no place where a FLUSH's payload begins. `state`: after the
/// headers.
uint32_t continue_as_rxe(uint32_t state, const std::byte* headers, uint32_t header_length);
/// The CRC as it is stored, lowest byte first. `state`: base::crc32() continued over all bytes before the CRC.
constexpr uint32_t icrc_of_state(uint32_t state) { return ~state; }
void store_icrc(uint32_t icrc, std::byte* to);
uint32_t load_icrc(const std::byte* from);

/// Returns the IPv4 identification with which a packet's CRC is `found`, if with identification 0 it would be
/// `computed`; none if no identification fits. A reader of a socket does not see the IPv4 header. A damaged packet
/// passes with a probability of 2^-16, in addition to UDP's own checksum. If the sender is known to use few
/// identifications, accept only those.
std::optional<uint16_t> identification_of(uint32_t computed, uint32_t found, uint32_t udp_payload);

/// For icrc_holds(): accepts any of the 2^16 identifications.
constexpr uint16_t kAnyIdentification = 0xffff;

/// True if the whole packet [data, data + length) has a right CRC; identifications up to `most` are accepted (IPv4).
/// `likely`: the identification that is tried first, at no cost. `soon`: where the payload will be copied to.
bool icrc_holds(const Route& route, const std::byte* data, uint32_t length, uint16_t most, uint16_t likely = 0,
                const std::byte* soon = nullptr, RouteStates* known = nullptr);
/// True if the packet is a FLUSH with the CRC of rdma_rxe. Any identification is accepted.
bool icrc_holds_as_rxe(const Route& route, const std::byte* data, uint32_t length);

}  // namespace nupa::roce
