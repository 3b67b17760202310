// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// How functions of the C++ API fail: a Result holds a value or an Error with errno and text. Functions that return an
/// `int` return 0 or the errno value itself.
#include <charconv>
#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace nupa {

/// Why a call failed: an errno value and one line of text for a person. A copy takes no allocation and does not throw.
/// Each thread uses its own copy.
class Error {
 public:
  /// Text of an Error whose own text found no memory.
  static constexpr const char* kNoMemory = "no memory for the reason";

  /// Makes an Error of constant text. It takes no allocation.
  /// @param code errno value
  /// @param sentence text in static storage, not null
  Error(int code, const char* sentence) noexcept : code_(code), sentence_(sentence) {}

  /// Makes an Error whose text names the object concerned. Without memory for the text, what() returns kNoMemory and
  /// the errno value stays.
  /// @param code errno value
  /// @param text one line
  Error(int code, std::string text) noexcept : code_(code), sentence_(kNoMemory) {
    try {
      text_ = std::make_shared<const std::string>(std::move(text));
    } catch (const std::bad_alloc&) {
      return;
    }
    sentence_ = text_->c_str();
  }

  /// @return The errno value.
  int code() const noexcept { return code_; }

  /// Returns the text. Use with_code(), never this pointer, to make an Error of another errno value and the same text.
  /// @return The text, never null. It is valid as long as this Error or a copy of it.
  const char* what() const noexcept { return sentence_; }

  /// Makes an Error of the same text and another errno value.
  /// @param code the other errno value
  /// @return The new Error. It takes no allocation.
  Error with_code(int code) const noexcept {
    Error other = *this;
    other.code_ = code;
    return other;
  }

 private:
  int code_;
  const char* sentence_;
  std::shared_ptr<const std::string> text_;  ///< empty where the text is constant
};

/// A value, or the Error of a call that failed.
template <class T>
using Result = tl::expected<T, Error>;

// ---- building failed results ----------------------------------------------------------------------------------------

/// Builds the failed side of a Result from constant text.
/// @param code errno value
/// @param sentence text in static storage, not null
/// @return The failed side, for any Result.
inline tl::unexpected<Error> fail(int code, const char* sentence) {
  return tl::unexpected<Error>(Error(code, sentence));
}

/// Builds the failed side of a Result from a text that names the object concerned.
/// @param code errno value
/// @param text one line
/// @return The failed side, for any Result.
inline tl::unexpected<Error> fail(int code, std::string text) {
  return tl::unexpected<Error>(Error(code, std::move(text)));
}

/// A part of an Error's text: words or a name, which it points at, or a whole number.
class TextPart {
 public:
  /// @param text words or a name, which must stay as long as this part
  template <class Text>
  requires std::convertible_to<const Text&, std::string_view> TextPart(const Text& text) : text_(text) {}
  /// @param number a number that becomes decimal digits
  template <std::integral Number>
  TextPart(Number number) : length_(std::to_chars(digits_, digits_ + sizeof digits_, number).ptr - digits_) {}

  /// @return The characters of the part.
  std::string_view text() const { return length_ == 0 ? text_ : std::string_view(digits_, length_); }

 private:
  std::string_view text_;
  char digits_[24];
  size_t length_ = 0;
};

/// Builds the failed side of a Result from the parts of its text. It joins them after the caller has read errno for
/// `code`, so building the text cannot change the errno value. Without memory the errno value stays and
/// Error::kNoMemory is the text; nothing is thrown.
/// @param code errno value
/// @param parts words, names and numbers
/// @return The failed side, for any Result.
[[gnu::cold, gnu::noinline]] inline tl::unexpected<Error> fail(int code, std::initializer_list<TextPart> parts) {
  try {
    std::string text;
    for (const TextPart& part : parts) text += part.text();
    return fail(code, std::move(text));
  } catch (const std::bad_alloc&) {
    return fail(code, Error::kNoMemory);
  }
}
/// The same, with the parts as arguments: `fail(errno, "interface ", name, ": ", number)`.
/// @param code errno value
/// @param first first part: words, a name or a whole number
/// @param second second part
/// @param more further parts
/// @return The failed side, for any Result.
template <class First, class Second, class... More>
tl::unexpected<Error> fail(int code, const First& first, const Second& second, const More&... more) {
  return fail(code, {TextPart(first), TextPart(second), TextPart(more)...});
}

/// Builds the failed side of a Result from the Error of another call.
/// @param error errno value and text
/// @return The failed side, for any Result.
inline tl::unexpected<Error> fail(Error error) { return tl::unexpected<Error>(std::move(error)); }

}  // namespace nupa
