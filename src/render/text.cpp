// src/render/text.cpp
// Glyphs for cells.
#include "render/text.h"

#include "base/check.h"

namespace keyhole {

std::vector<std::string> picture_rows(const Picture& picture) {
  std::vector<std::string> rows;
  for (int64_t r = 0; r < picture.rows; ++r) {
    std::string row;
    for (int64_t c = 0; c < picture.cols; ++c) {
      const uint8_t share = picture.at(r, c);
      row += share == Picture::kAbsent ? '.' : share == Picture::kFull ? '#' : '+';
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string picture_text(const Picture& picture, const Paint& paint) {
  std::string text = headline(picture) + "\n";
  if (picture.cell > 1) {
    text += say("each cell is ", picture.cell, " x ", picture.cell,
                " pairs: # all attend, + some do, . none\n");
  }
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
