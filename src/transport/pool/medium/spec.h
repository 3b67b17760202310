// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/result.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nupa::pool {

enum class MediumKind : uint8_t {
  kFile,  ///< a file that stands for a device
  kPci,   ///< a BAR of a PCI function
  kDax,   ///< a device-dax character device: CXL or persistent memory
};

enum class Coherence : uint8_t {
  kAuto,  ///< a file: full; a device: what it is and how fast it answers decide
  kNone,  ///< lines are written back and invalidated; on a file, each host has its own copy
  kFull,
};

enum class DoorbellChoice : uint8_t {
  kAuto,  ///< that of the medium, if it has one
  kNone,  ///< this process looks at its channels from time to time, and rings nobody
};

/// Which pool this process uses, and as which host.
struct Spec {
  MediumKind kind = MediumKind::kFile;
  std::string name;  ///< path, or address of the PCI function
  uint16_t host = 0;
  std::optional<uint32_t> bar;  ///< kPci: without it, the largest one
  Coherence coherence = Coherence::kAuto;
  DoorbellChoice doorbell = DoorbellChoice::kAuto;
  uint64_t seed = 1;  ///< kFile without coherence: of evictions and prefetches

  /// The medium as in the text: "file:/dev/shm/pool".
  std::string medium() const;
};

/// The file that stands for NUPA_POOL where the variable is not set. It has the keys "medium", "host", "bar",
/// "coherence", "doorbell" and "seed": {"medium": "pci:0000:00:02.0", "host": 0}.
inline constexpr const char* kSpecFile = "/etc/nupa/pool.json";

/// Reads `MEDIUM,host=N[,bar=N][,coherence=auto|none|full][,doorbell=auto|none][,seed=N]`. MEDIUM:
/// `pci:0000:00:02.0`, `/dev/dax0.0` or `file:/PATH`. EINVAL: the text names the wrong part. `source`: begins that text
/// ("NUPA_POOL"), unless it is empty.
Result<Spec> parse_spec(std::string_view text, std::string_view source);
/// Reads the text of a file like kSpecFile. EINVAL; ENOTSUP: a build without a JSON reader.
Result<Spec> parse_spec_json(const std::string& text, std::string_view source);
/// The pool of NUPA_POOL, or of kSpecFile. No value: there is neither.
Result<std::optional<Spec>> spec_from_environment();

}  // namespace nupa::pool
