#pragma once
#include <array>
#include <optional>

#include <nupa/types.h>
#include "transport/roce/wire/wire.h"

namespace nupa::roce {

/// The addresses of a packet: IPv4 ones as ::ffff:a.b.c.d, both of one family.
struct Route {
  Gid source;
  Gid destination;
  uint16_t source_port = kUdpPort;
  uint16_t destination_port = kUdpPort;
  bool operator==(const Route&) const = default;
};

/// What the IP and UDP headers make of the CRC's state, remembered: a port meets few lengths on few routes. One thread.
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

/// The invariant CRC (IBTA 7.8.1 and annex A17.3.3): over the IP and UDP headers with what routers change masked, and
/// all that follows. In two steps, because the payload need not lie behind the headers.
///
/// `udp_payload`: bytes of UDP payload, the CRC's own 4 with them. `identification`: of the IPv4 header.
/// Returns the state after IP, UDP and the `header_length` bytes from the base transport header on.
uint32_t icrc_of_headers(const Route& route, uint16_t identification, uint32_t udp_payload, const std::byte* headers,
                         uint32_t header_length, RouteStates* known = nullptr);
/// The CRC as it is stored, lowest byte first, from base::crc32() continued over all bytes up to it.
constexpr uint32_t icrc_of_state(uint32_t state) { return ~state; }
void store_icrc(uint32_t icrc, std::byte* to);
uint32_t load_icrc(const std::byte* from);

/// Which IPv4 identification makes the packet right, whose CRC with identification 0 would be `computed` and that came
/// with `found`: none, if there is none. A socket's reader does not see the header. A damaged packet passes with a
/// chance of 2^-16, on top of UDP's own checksum; where the sender is known to use few identifications, ask for those.
std::optional<uint16_t> identification_of(uint32_t computed, uint32_t found, uint32_t udp_payload);

/// For icrc_holds(): whichever of the 2^16 identifications. What segmentation counts is tried first, others are worked
/// out.
constexpr uint16_t kAnyIdentification = 0xffff;

/// True if the whole packet [data, data + length) has a right CRC; identifications up to `most` are accepted (IPv4).
/// `likely`: one that is tried first, since it costs nothing. `soon`: where the payload will be copied to.
bool icrc_holds(const Route& route, const std::byte* data, uint32_t length, uint16_t most, uint16_t likely = 0,
                const std::byte* soon = nullptr, RouteStates* known = nullptr);

}  // namespace nupa::roce
