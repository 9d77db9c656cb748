// src/render/text.cpp
// Glyphs for cells.
#include "render/text.h"

#include "base/check.h"

namespace keyhole {

namespace {

char glyph_of(uint8_t share, char none) {
  return share == Picture::kAbsent ? none : share == Picture::kFull ? '#' : '+';
}

// What the glyphs mean, where that is not plain to see.
std::string key_of(const Picture& picture) {
  std::string text;
  if (picture.cell > 1) text = say("each cell is ", picture.cell, " x ", picture.cell, " pairs: ");
  if (picture.has_kept()) {
    const KeptWords& words = words_of(picture.kept_as);
    text += picture.cell == 1 ? words.of_pairs : words.of_cells;
    return say("of ", picture.numbers, "; ", text, "\n");
  }
  return picture.cell > 1 ? text + "# all attend, + some do, . none\n" : "";
}

}  // namespace

std::vector<std::string> picture_rows(const Picture& picture) {
  std::vector<std::string> rows;
  for (int64_t r = 0; r < picture.rows; ++r) {
    std::string row;
    for (int64_t c = 0; c < picture.cols; ++c) {
      const bool is_seen = picture.at(r, c) != Picture::kAbsent;
      row += picture.has_kept() && is_seen ? glyph_of(picture.kept_at(r, c), '-')
                                           : glyph_of(picture.at(r, c), '.');
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string picture_text(const Picture& picture, const Paint& paint) {
  std::string text = headline(picture) + "\n" + key_of(picture);
  for (const std::string& row : picture_rows(picture)) {
    // One paint for each stretch of equal glyphs, not for each glyph.
    for (size_t begin = 0; begin < row.size();) {
      size_t end = row.find_first_not_of(row[begin], begin);
      if (end == std::string::npos) end = row.size();
      std::string stretch;
      for (size_t c = begin; c < end; ++c) {
        stretch += row[c];
        if (c + 1 < row.size()) stretch += ' ';
      }
      text += paint ? paint(row[begin], stretch) : stretch;
      begin = end;
    }
    text += '\n';
  }
  return text;
}

}  // namespace keyhole
